"""Batches of a PyTorch `DataLoader`, shared among ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytagi_ddp.data import DistributedSampler, EvaluationSampler, ImageDataset


def torch_loader(
    dataset: ImageDataset,
    batch_size: int,
    rank: int,
    world_size: int,
    *,
    mean: np.ndarray,
    std: np.ndarray,
    seed: int = 0,
    evaluation: bool = False,
) -> Any:
    """A `DataLoader` of (images, labels) for one rank; arguments as for `BatchLoader`.

    In training every rank gets as many images, so that all step equally often; evaluation counts every image once.

    Raises:
        RuntimeError: PyTorch is not installed.
    """
    try:
        import torch  # here, because nothing else needs it
    except ImportError:
        raise RuntimeError("--loader torch needs PyTorch, which is not installed: pip install torch") from None
    x = (dataset.images / np.float32(255) - mean[:, None, None]) / std[:, None, None]
    shard = EvaluationSampler(len(dataset), rank, world_size)
    ours = DistributedSampler(dataset, rank, world_size, seed=seed)
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(dataset.labels)),
        batch_size,
        sampler=range(shard.begin, shard.end) if evaluation else ours,
    )
