"""Images in files, with a folder for each class: `train/n01440764/n01440764_10026.JPEG`, as in ImageNet."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from pytagi_ddp.data.decoding import ImageError, Source, read_parts, read_scaled, use_workers
from pytagi_ddp.data.image_shard import ImageShard, write_shard
from pytagi_ddp.data.sampler import check_sizes
from pytagi_ddp.listing import some
from pytagi_ddp.validate import as_integers, as_numbers
from pytagi_ddp.warn import warn

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp")
# Suffixes of images in other formats.
OTHERS = (".bmp", ".gif", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".ppm", ".pgm", ".jfif", ".dng")
SHARD_SIZE = 256  # images of a shard; 67 MB for 256 x 340 pixels each


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """Labelled images in files, which `FolderLoader` reads when they are needed.

    Made by `ImageFolder.find`.

    Attributes:
        root: The folder.
        classes: The name of each class, which is that of its folder.
        files: The images, relative to `root`, ordered by class and name.
        labels: int64, shape (N,): the class of each.
        on_error: "raise" or "skip", see `find`.
        shards: The files with decoded copies, see `cached`; None: there are none.
        rows: Place of each image in the shards.
    """

    root: Path
    classes: tuple[str, ...]
    files: tuple[str, ...]
    labels: np.ndarray
    on_error: str = "raise"
    shards: tuple[str, ...] | None = None
    rows: np.ndarray | None = None

    @classmethod
    def find(
        cls, root: str | os.PathLike[str], classes: Sequence[str] | None = None, on_error: str = "raise"
    ) -> ImageFolder:
        """The images in `root`/CLASS/*.jpeg (.jpg, .png, .webp; in capitals too), in the order of their names.

        Names that begin with a dot, and files that are not images, are left out. Images in other formats, in `root`
        itself, or in folders inside those of the classes are left out with a warning that names them. Links are
        followed. Images are rotated according to their EXIF data.

        Args:
            root: The folder.
            classes: Names of the classes; None: those of the folders in `root`, in alphabetical order. For a test set,
                pass those of the training set.
            on_error: For files that are not images, or damaged: "raise" an error that names the file, or "skip" it with
                a warning; a batch then has fewer images.

        Raises:
            OSError: The folder does not exist.
            ValueError: No image, a class without images, or a folder that is not among `classes`.
        """
        if on_error not in ("raise", "skip"):
            raise ValueError(f'on_error must be "raise" or "skip", got {on_error!r}')
        root = Path(root).expanduser()
        folders = sorted(entry.name for entry in _visible(root) if entry.is_dir())
        if unknown := sorted(set(folders) - set(folders if classes is None else classes)):
            raise ValueError(f"{root} has folders that are none of the {len(classes or ())} classes: {some(unknown)}")
        all_images = {name: _images(root / name) for name in folders}
        found = {name: [file for file in files if _is_read(file)] for name, files in all_images.items()}
        unread = [f"{name}/{file}" for name, files in all_images.items() for file in files if not _is_read(file)]
        others = f"; not read are {some(unread)}: save them in one of these formats" if unread else ""
        if not any(found.values()):
            expected = f"they are expected as CLASS/NAME.jpeg ({', '.join(SUFFIXES)})"
            raise ValueError(f"{root} holds no images: {expected}{others}")
        if empty := [name for name, images in found.items() if not images and classes is None]:
            raise ValueError(f"{root} has folders without images ({', '.join(SUFFIXES)}): {some(empty)}{others}")
        if unread:
            warn(
                f"{root}: {len(unread)} images of other formats than {', '.join(SUFFIXES)} are left out: {some(unread)}"
            )
        inside = (f"{name}/{entry.name}" for name in folders for entry in _visible(root / name) if _has_images(entry))
        if misplaced := [*_images(root), *sorted(inside)]:
            warn(f"{root}: images that are not in {root.name}/CLASS itself are left out: {some(misplaced)}")
        names = tuple(folders if classes is None else classes)
        index = {name: k for k, name in enumerate(names)}
        labels = np.repeat([index[name] for name in found], [len(images) for images in found.values()])
        files = tuple(f"{name}/{image}" for name, images in found.items() for image in images)
        return cls(root, names, files, labels.astype(np.int64), on_error)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.root.name

    def subset(self, n: int) -> ImageFolder:
        """n images (all if there are fewer), evenly spread over the set, and so over the classes.

        Raises:
            ValueError: n < 1.
        """
        as_integers(f"subset of {self.name}", 1, n=n)
        return self._of(np.arange(min(n, len(self))) * len(self) // min(n, len(self)))

    def split(self, share: float, seed: int = 0) -> tuple[ImageFolder, ImageFolder]:
        """Divides the images into two sets: the rest, and a random `share` of each class.

            train_set, test_set = ImageFolder.find("photos").split(0.2)

        Args:
            share: Share of the second set, above 0 and below 1; at least one image of each class, and not all.
            seed: Seed of the draw.

        Raises:
            ValueError: A share out of range, or a class with fewer than two images.
        """
        as_numbers(f"split of {self.name}", "(0, 1)", share=share)
        random, second = np.random.default_rng(seed), np.zeros(len(self), bool)
        for label in np.unique(self.labels):
            of_class = np.flatnonzero(self.labels == label)
            if len(of_class) < 2:
                raise ValueError(f"{self.name}: class {self.classes[label]} has one image, and a split needs two")
            count = min(max(1, round(share * len(of_class))), len(of_class) - 1)
            second[random.permutation(of_class)[:count]] = True
        return self._of(np.flatnonzero(~second)), self._of(np.flatnonzero(second))

    def _of(self, chosen: np.ndarray) -> ImageFolder:
        """These images."""
        files, rows = tuple(self.files[k] for k in chosen), None if self.rows is None else self.rows[chosen]
        return replace(self, files=files, labels=self.labels[chosen], rows=rows)

    def source(self, index: int) -> Source:
        """The place of image `index`."""
        path = str(self.root / self.files[index])
        if self.shards is None or self.rows is None:
            return Source(path)
        shard, row = divmod(int(self.rows[index]), SHARD_SIZE)
        return Source(path, self.shards[shard], row)

    def readable(self, workers: int | Executor = 0) -> ImageFolder:
        """The images that can be read: the others are left out, with a warning that names each.

        Predictions by a `FolderLoader` for evaluation, on one rank, are then in the order of `files`.

        Args:
            workers: As in `cached`.

        Raises:
            OSError: A file cannot be opened.
        """
        places = np.arange(len(self))
        parts = [places[first : first + SHARD_SIZE] for first in range(0, len(self), SHARD_SIZE)]
        bad = []
        with use_workers(workers) as executor:
            futures = [executor.submit(read_parts, [self.source(int(k)) for k in part], 1, None) for part in parts]
            for part, future in zip(parts, futures, strict=True):
                for row, problem in future.result()[1]:
                    warn(f"left out: {problem}", RuntimeWarning)
                    bad.append(part[row])
        return self._of(np.setdiff1d(places, bad))

    def cached(
        self,
        folder: str | os.PathLike[str],
        side: int = 256,
        rank: int = 0,
        world_size: int = 1,
        workers: int | Executor = 0,
    ) -> ImageFolder:
        """The same images, read from decoded copies in `folder`, whose shorter side has `side` pixels.

        Copies are written if they are missing, or if sizes or times of modification of the files have changed. An
        image takes about 4 side^2 bytes. Each file of copies is written completely or not at all. It has a checksum of
        each image, which is compared when the image is read. Its name depends on the absolute paths of its images, so
        that several sets can share a folder; if the images are moved, copies are made anew.

        All ranks call it with the same absolute path of the images, and each writes its share. A barrier has to follow
        before any of them reads.

        Args:
            folder: The folder of the copies.
            side: Pixels of the shorter side. Training takes random parts of 8 to 100 % of the area.
            rank, world_size: This rank, and the number of ranks.
            workers: Number of decoding processes, or an executor; 0: this thread.

        Raises:
            ImageError: A file that is not an image, unless these are skipped. OSError: a file cannot be read or
                written.
            ValueError: side < 1, or no such rank.
        """
        as_integers(f"copies of {self.name}", 1, side=side)
        check_sizes(len(self), rank, world_size)
        whole = Path(folder).expanduser() / f"side-{side}"
        paths = [str(self.root / file) for file in self.files]
        parts = [paths[first : first + SHARD_SIZE] for first in range(0, len(paths), SHARD_SIZE)]
        home = self.root.resolve()
        names = [os.path.join(home, file) for file in self.files]
        shards = [_shard_path(whole, k, names[k * SHARD_SIZE : (k + 1) * SHARD_SIZE]) for k in range(len(parts))]
        args = [(part, shard, side, self.on_error) for part, shard in zip(parts, shards, strict=True)]
        with use_workers(workers) as executor:
            futures = [executor.submit(_make_shard, *arguments) for arguments in args[rank::world_size]]
            try:
                for problem in chain.from_iterable(future.result() for future in futures):
                    warn(f"left out: {problem}", RuntimeWarning)
            finally:
                for future in futures:
                    future.cancel()
        return replace(self, shards=tuple(map(str, shards)), rows=np.arange(len(paths)))


def _make_shard(paths: Sequence[str], shard: Path, side: int, on_error: str) -> list[str]:
    """Writes a shard, unless it exists; returns the errors of skipped files."""
    stats = [os.stat(path) for path in paths]
    text = "\n".join(f"{stat.st_size} {stat.st_mtime_ns}" for stat in stats)
    made_of = hashlib.sha256(text.encode()).hexdigest()
    try:
        found = ImageShard(shard)
        if found.made_of == made_of and len(found) == len(paths):
            return []
    except (OSError, ValueError):
        pass  # it does not exist, or is made again
    images, problems = [], []
    for path in paths:
        try:
            images.append(read_scaled(path, side))
        except ImageError as error:
            if on_error == "raise":
                raise
            problems.append(str(error))
            images.append(np.empty((0, 0, 3), np.uint8))
    write_shard(shard, images, made_of)
    return problems


def _shard_path(folder: Path, number: int, paths: Sequence[str]) -> Path:
    """The path of a shard, which depends on the paths of its images."""
    digest = hashlib.sha256(os.fsencode("\n".join(paths))).hexdigest()[:16]
    return folder / f"images-{number:06d}-{digest}.safetensors"


def _visible(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from (entry for entry in entries if not entry.name.startswith("."))


def _images(folder: Path) -> list[str]:
    """The names of all images in `folder` in order, including other formats."""
    ends = SUFFIXES + OTHERS
    return sorted(entry.name for entry in _visible(folder) if entry.name.lower().endswith(ends) and not entry.is_dir())


def _has_images(folder: os.DirEntry[str]) -> bool:
    """Whether this is a folder with images at any depth."""
    ends = SUFFIXES + OTHERS
    return folder.is_dir() and any(path.name.lower().endswith(ends) for path in Path(folder).rglob("*"))


def _is_read(file: str) -> bool:
    return file.lower().endswith(SUFFIXES)
