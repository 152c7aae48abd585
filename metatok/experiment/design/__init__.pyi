from .cell import Cell, ModelCell, all_kinds, cell_from_json, kind_names, stages
from .context import Context, Metrics, Outcome, table
from .cost import Cost
from .kinds.ablate import Ablate
from .kinds.candidate import Candidate, candidates
from .kinds.efficiency import Efficiency
from .kinds.extend import Extend
from .kinds.finetune import Finetune
from .kinds.pretrain import Pretrain
from .kinds.probe import Probe
from .kinds.published import Published, unreachable
from .kinds.rate_distortion import RateDistortion
from .plan import Trial, distinct_inputs, trials, with_ancestors
from .preset import Preset
from .presets import PRESETS, get_preset
from .search import Choice, SearchSettings, Setting
from .settings import RunSettings

__all__ = [
    "PRESETS",
    "Ablate",
    "Candidate",
    "Cell",
    "Choice",
    "Context",
    "Cost",
    "Efficiency",
    "Extend",
    "Finetune",
    "Metrics",
    "ModelCell",
    "Outcome",
    "Preset",
    "Pretrain",
    "Probe",
    "Published",
    "RateDistortion",
    "RunSettings",
    "SearchSettings",
    "Setting",
    "Trial",
    "all_kinds",
    "candidates",
    "cell_from_json",
    "distinct_inputs",
    "get_preset",
    "kind_names",
    "stages",
    "table",
    "trials",
    "unreachable",
    "with_ancestors",
]
