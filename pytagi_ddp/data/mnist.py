"""MNIST: 60,000 training and 10,000 test images of 28 x 28 grey pixels, digits 0 to 9.

Source: LeCun, Bottou, Bengio & Haffner (1998), "Gradient-based learning applied to document recognition".
Files are in IDX format, gzipped or plain: see `idx`.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np

from pytagi_ddp.data.dataset import ImageDataset
from pytagi_ddp.data.download import download_file
from pytagi_ddp.data.folders import Layout, PublishedDataset, download_folder
from pytagi_ddp.data.idx import read_idx

URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
MAX_BYTES = 16 << 20  # of a file; the largest has 10 MB
CLASSES = tuple("0123456789")

_SUBFOLDER = "MNIST/raw"
_GZIPPED = Layout(_SUBFOLDER, tuple(MD5))
_PLAIN = Layout(_SUBFOLDER, tuple(name.removesuffix(".gz") for name in MD5))
_KAGGLE = Layout(_SUBFOLDER, tuple(name.replace("-idx", ".idx") for name in _PLAIN.files))
_MNIST = PublishedDataset("MNIST", "mnist", (_GZIPPED, _PLAIN, _KAGGLE), URL)


def find_mnist(data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder with the four files of MNIST, gzipped or plain, or None.

    They are called train-images-idx3-ubyte.gz and so on, or without .gz, or as on Kaggle train-images.idx3-ubyte.

    Searched in order, each with its subfolder MNIST/raw: data_dir, $PYTAGI_DATA, $PYTAGI_DATA/mnist,
    ./data/mnist.
    """
    return _MNIST.find(data_dir)


def download_mnist(data_dir: str | os.PathLike[str] | None = None, progress: bool = True) -> Path:
    """Download the four gzipped files (12 MB); with several ranks, on one of them only.

    Args:
        data_dir: The folder; None: $PYTAGI_DATA/mnist, else ./data/mnist.
        progress: Show a progress bar per file.

    Returns:
        The folder with the files.

    Raises:
        DatasetNotFoundError: A file could not be fetched, did not have its published checksum, or could not
            be written.
    """
    target = download_folder("mnist", data_dir)
    try:
        for name, md5 in MD5.items():
            download_file(URL + name, target / name, md5, MAX_BYTES, progress)
    except OSError as error:
        raise _MNIST.not_found(data_dir, error) from error
    return target


def load_mnist(
    data_dir: str | os.PathLike[str] | None = None, download: bool = True, progress: bool = True
) -> tuple[ImageDataset, ImageDataset]:
    """Load MNIST from the folder that `find_mnist` finds, or download it.

    Args:
        data_dir: A folder to search first, and to download into.
        download: Whether to download.
        progress: Show a progress bar while downloading.

    Returns:
        Training set and test set, images of shape (N, 1, 28, 28).

    Raises:
        DatasetNotFoundError: Not found, and not downloaded.
        ValueError: A truncated or corrupt file.
    """
    folder = _MNIST.find_or(partial(download_mnist, data_dir, progress) if download else None, data_dir)
    return _load(folder, "train", "MNIST train"), _load(folder, "t10k", "MNIST test")


def _load(folder: Path, prefix: str, title: str) -> ImageDataset:
    images = read_idx(_file(folder, f"{prefix}-images-idx3-ubyte"), 3)
    labels = read_idx(_file(folder, f"{prefix}-labels-idx1-ubyte"), 1)
    if images.shape[1:] != (28, 28):
        raise ValueError(f"{folder}: {prefix} images are {images.shape[1]} x {images.shape[2]}, expected 28 x 28")
    if len(images) != len(labels):
        raise ValueError(f"{folder}: {prefix} has {len(images)} images, but {len(labels)} labels")
    return ImageDataset(images[:, np.newaxis], labels, CLASSES, title)


def _file(folder: Path, name: str) -> Path:
    """The file `name`, as on Kaggle, or else gzipped."""
    plain = (folder / name, folder / name.replace("-idx", ".idx"))
    return next((path for path in plain if path.is_file()), folder / f"{name}.gz")
