"""What happens inside a trained model at its meta tokens: the paper's Figures 2 and 3."""

from metatok.analysis.attention_maps import PARTS, AttentionMap, AttentionMass, attention_map, attention_mass
from metatok.analysis.rate_distortion import (
    BETAS,
    RateDistortionConfig,
    RateDistortionResult,
    Site,
    fit,
    site_states,
)
from metatok.analysis.residual import ResidualMap, ResidualProfile, residual_map, residual_profile
from metatok.analysis.sharpness import BoostEffect, Sharpness, measure_boost_effect, measure_sharpness

__all__ = [
    "BETAS",
    "PARTS",
    "AttentionMap",
    "AttentionMass",
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
    "measure_boost_effect",
    "measure_sharpness",
    "residual_map",
    "residual_profile",
    "site_states",
]
