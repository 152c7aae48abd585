"""One thread for everything: small tensors, two cores, and the same rounding wherever the tests run."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
