"""Collective operations of the processes of a training run; a single process runs them alone."""

from __future__ import annotations

from torch import Tensor, distributed


def mean_over_processes(x: Tensor) -> Tensor:
    if not distributed.is_initialized():
        return x
    distributed.all_reduce(x)
    return x / distributed.get_world_size()


def barrier() -> None:
    if distributed.is_initialized():
        distributed.barrier()
