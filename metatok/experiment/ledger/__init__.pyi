from .ledger import Ledger, RunRecord, SweepRecord
from .run import CellRun, ClaimLost

__all__ = [
    "CellRun",
    "ClaimLost",
    "Ledger",
    "RunRecord",
    "SweepRecord",
]
