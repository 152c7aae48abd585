from .attention_maps import PARTS, AttentionMap, AttentionMass, attention_map, attention_mass
from .attention_rows import AttentionRows, BoostEffect, measure_attention_rows, measure_boost_effect
from .config import BETAS, RateDistortionConfig, Site
from .rate_distortion import RateDistortionResult, fit, site_states
from .residual import ResidualMap, ResidualProfile, residual_map, residual_profile
from .sharpness import Sharpness, measure_sharpness

__all__ = [
    "BETAS",
    "PARTS",
    "AttentionMap",
    "AttentionMass",
    "AttentionRows",
    "BoostEffect",
    "RateDistortionConfig",
    "RateDistortionResult",
    "ResidualMap",
    "ResidualProfile",
    "Sharpness",
    "Site",
    "attention_map",
    "attention_mass",
    "fit",
    "measure_attention_rows",
    "measure_boost_effect",
    "measure_sharpness",
    "residual_map",
    "residual_profile",
    "site_states",
]
