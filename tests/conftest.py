"""One thread for everything: small tensors, two cores, and the same rounding wherever the tests run.

What takes longest comes first, so that several processes of pytest-xdist end together.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (item.path.parent.name != "sweeps", item.path.name != "test_types.py"))
