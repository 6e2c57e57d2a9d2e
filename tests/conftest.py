"""Settings for every test."""

from __future__ import annotations

import torch

torch.set_num_threads(1)  # small tensors are slower with more
