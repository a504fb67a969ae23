"""CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 pixels in 10 classes.

Source: Krizhevsky (2009), "Learning multiple layers of features from tiny images". Both official layouts are
read: binary (`cifar-10-batches-bin`: records of one label byte and 3 x 32 x 32 pixels) and Python
(`cifar-10-batches-py`: pickled dictionaries). A pickle is a program, so only the official files are unpickled. The
archive is unpacked only if it is the official one, too.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import tarfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np

from pytagi_ddp.data.dataset import ImageDataset
from pytagi_ddp.data.download import download_file
from pytagi_ddp.data.folders import Layout, PublishedDataset, download_folder
from pytagi_ddp.files import atomic_file, file_size, read_file

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
MAX_BYTES = 256 << 20  # of the archive, which has 170 MB
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCH_SIZE = 10_000  # images per official file
PYTHON_MD5 = {  # of the official pickles
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
_TEST = ("test_batch",)
_BINARY = Layout("cifar-10-batches-bin", tuple(f"{name}.bin" for name in _TRAIN + _TEST))
_PYTHON = Layout("cifar-10-batches-py", _TRAIN + _TEST)
_CIFAR10 = PublishedDataset("CIFAR-10", "cifar", (_BINARY, _PYTHON), URL)


def find_cifar10(data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder with the files of CIFAR-10 in either layout, or None.

    Searched in order, each with the usual subfolders: data_dir, $PYTAGI_DATA, $PYTAGI_DATA/cifar,
    ./data/cifar.
    """
    return _CIFAR10.find(data_dir)


def download_cifar10(data_dir: str | os.PathLike[str] | None = None, progress: bool = True) -> Path:
    """Download the official archive (170 MB) and unpack it; with several ranks, on one of them only.

    Args:
        data_dir: The folder; None: $PYTAGI_DATA/cifar, else ./data/cifar.
        progress: Show a progress bar.

    Returns:
        The folder with the files.

    Raises:
        DatasetNotFoundError: The archive could not be fetched, did not have its published checksum, or
            could not be written.
    """
    target = download_folder("cifar", data_dir)
    archive = target / URL.rsplit("/", 1)[1]
    try:
        download_file(URL, archive, MD5, MAX_BYTES, progress)
        _unpack(archive, target / _BINARY.subfolder)
        archive.unlink()
    except OSError as error:
        raise _CIFAR10.not_found(data_dir, error) from error
    return target / _BINARY.subfolder


def load_cifar10(
    data_dir: str | os.PathLike[str] | None = None, download: bool = True, progress: bool = True
) -> tuple[ImageDataset, ImageDataset]:
    """Load CIFAR-10 from the folder that `find_cifar10` finds, or download it.

    Args:
        data_dir: A folder to search first, and to download into.
        download: Whether to download.
        progress: Show a progress bar while downloading.

    Returns:
        Training set and test set, images of shape (N, 3, 32, 32).

    Raises:
        DatasetNotFoundError: Not found, and not downloaded.
        ValueError: A truncated or corrupt file.
    """
    folder = _CIFAR10.find_or(partial(download_cifar10, data_dir, progress) if download else None, data_dir)
    return _load(folder, _TRAIN, "CIFAR-10 train"), _load(folder, _TEST, "CIFAR-10 test")


def _unpack(archive: Path, folder: Path) -> None:
    """Copies the files of the binary layout out of the official archive: `MD5` is its checksum."""
    files = {f"{_BINARY.subfolder}/{name}": folder / name for name in _BINARY.files}
    with tarfile.open(archive, "r|gz") as tar:
        for member in tar:
            if member.name in files:
                with tar.extractfile(member) as source, atomic_file(files[member.name]) as file:  # type: ignore[union-attr]
                    shutil.copyfileobj(source, file)


def _load(folder: Path, names: tuple[str, ...], title: str) -> ImageDataset:
    images = np.empty((len(names) * BATCH_SIZE, _PIXELS), np.uint8)
    labels = np.empty(len(images), np.int64)
    for i, name in enumerate(names):
        part = slice(i * BATCH_SIZE, (i + 1) * BATCH_SIZE)
        binary = folder / f"{name}.bin"
        path, read = (binary, _read_binary) if binary.is_file() else (folder / name, _read_python)
        images[part], labels[part] = read(path)
        outside = labels[part][(labels[part] < 0) | (labels[part] >= len(CLASSES))]
        if outside.size:
            raise ValueError(f"{path}: label {outside[0]} is outside 0..{len(CLASSES) - 1}; fetch the file again")
    return ImageDataset(images.reshape(-1, *_SHAPE), labels, CLASSES, title)


def _read_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    expected, found = BATCH_SIZE * (1 + _PIXELS), file_size(path)
    if found != expected:
        raise ValueError(f"{path}: expected {expected} bytes, found {found}; fetch the file again")
    records = np.fromfile(path, np.uint8).reshape(BATCH_SIZE, 1 + _PIXELS)
    return records[:, 1:], records[:, 0]


def _read_python(path: Path) -> tuple[np.ndarray, np.ndarray]:
    data, expected = read_file(path, 2 * BATCH_SIZE * _PIXELS), PYTHON_MD5[path.name]
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != expected:
        raise ValueError(
            f"{path}: {len(data)} bytes with md5 {found}, and the official file has md5 {expected}; fetch the file "
            "again, or the archive of binary files"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of arrays that Python 2 has pickled
        batch = pickle.loads(data, encoding="bytes")
    return batch[b"data"], np.array(batch[b"labels"])
