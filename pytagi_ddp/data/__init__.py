"""Data sets in memory or in files, augmentation, and batches divided among ranks. It does not need MPI.

train, test = load_cifar10()
loader = BatchLoader(train, 128, rank, world_size, transform=random_crop_flip, mean=train.mean(), std=train.std())
for x, labels in loader: ...
"""

from pytagi_ddp.data.array_loader import ArrayLoader
from pytagi_ddp.data.augment import ShardRandom, random_affine, random_crop_flip
from pytagi_ddp.data.cifar10 import download_cifar10, find_cifar10, load_cifar10
from pytagi_ddp.data.dataset import ImageDataset
from pytagi_ddp.data.decoding import ImageError, image_workers
from pytagi_ddp.data.folder_loader import FolderLoader
from pytagi_ddp.data.folders import DatasetNotFoundError
from pytagi_ddp.data.image_folder import ImageFolder
from pytagi_ddp.data.loader import BatchLoader
from pytagi_ddp.data.mnist import download_mnist, find_mnist, load_mnist
from pytagi_ddp.data.sampler import DistributedSampler, EvaluationSampler, IndexBatch, ShardedSampler
from pytagi_ddp.data.synthetic import synthetic_images
from pytagi_ddp.data.uci import RegressionSplits, download_uci, find_uci, load_uci

__all__ = [
    "ArrayLoader",
    "BatchLoader",
    "DatasetNotFoundError",
    "DistributedSampler",
    "EvaluationSampler",
    "FolderLoader",
    "ImageDataset",
    "ImageError",
    "ImageFolder",
    "IndexBatch",
    "RegressionSplits",
    "ShardRandom",
    "ShardedSampler",
    "download_cifar10",
    "download_mnist",
    "download_uci",
    "find_cifar10",
    "find_mnist",
    "find_uci",
    "image_workers",
    "load_cifar10",
    "load_mnist",
    "load_uci",
    "random_affine",
    "random_crop_flip",
    "synthetic_images",
]
