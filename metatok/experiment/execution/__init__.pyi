from .execute import OnProgress, Progress, Status, process_tags, run_cells
from .export import export_cell

__all__ = [
    "OnProgress",
    "Progress",
    "Status",
    "export_cell",
    "process_tags",
    "run_cells",
]
