"""Images in files, decoded, cropped and scaled by Pillow in worker processes. Files are not trusted."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytagi_ddp.data.image_shard import ImageShard
from pytagi_ddp.files import file_size
from pytagi_ddp.warn import warn

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

FORMATS = ("JPEG", "PNG", "WEBP")  # by content, not by name: some .JPEG of ImageNet is a PNG
TRIES = 10
NUMBERS = 4 * TRIES + 1  # random numbers of an image
LEAST, RATIO = 0.08, (3 / 4, 4 / 3)  # of a random part: smallest share of the image's area, limits of width / height
CENTRE = 224 / 256  # side of the part for evaluation / the image's shorter side
ORIENTATION = 0x0112  # number of the EXIF field for the orientation of the camera
DARK = (  # without the name of a file, so that it is shown once
    "an image of 16 bits has no value above 1/8 of their range, and keeps few of its shades, since its values are "
    "divided by 256: if the camera has fewer bits, save the images with the whole range of 16 or 8 bits"
)
# The operation of `Image.Transpose` that makes an image upright, by that field; none for other values.
TURNS = {
    **{2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM"},
    **{5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90"},  # these exchange the sides
}
Box = tuple[float, float, float, float]  # left, top, right, bottom


class ImageError(ValueError):
    """A file that is not a readable image; the message names it."""


class Source(NamedTuple):
    """The place of an image: a file, or a row of a shard with its decoded copy."""

    path: str
    shard: str | None = None
    row: int = 0


def pillow() -> Any:
    """The module PIL.Image.

    Raises:
        ImportError: Pillow is not installed; says how to install it.
    """
    try:
        from PIL import Image  # here, because it is optional
    except ImportError:
        message = "reading image files needs Pillow, which is not installed: pip install 'pytagi-ddp[images]'"
        raise ImportError(message) from None
    return Image


@contextmanager
def open_image(path: str) -> Iterator[Picture]:
    """The image in a file: its size is known, and its pixels are decoded at their first use.

    Raises:
        ImageError: not an image, a damaged or truncated one, or more pixels than Pillow's limit
            (`Image.MAX_IMAGE_PIXELS`); also inside the block.
        OSError: the file does not exist, is not a regular file, or cannot be read.
    """
    image_module = pillow()
    try:
        file_size(path)
        with image_module.open(path, formats=FORMATS) as image:
            pixels, limit = image.width * image.height, image_module.MAX_IMAGE_PIXELS
            if limit is not None and pixels > limit:
                raise ImageError(f"{pixels} pixels are more than Pillow's limit of {limit}, a decompression bomb maybe")
            yield image
    except Exception as error:  # a damaged file may raise any error: Pillow does not document types
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ImageError(f"{path}: {str(error) or repr(error)}") from error


def read_part(
    source: Source, size: int, numbers: np.ndarray | None, least: float = LEAST, whole: bool = False
) -> np.ndarray:
    """The part of an image, upright, for a network; uint8, shape (3, size, size).

    Args:
        source: the image.
        size: length of both sides.
        numbers: `NUMBERS` uniform random numbers, for a random part, mirrored or not. None: the centre.
        least: smallest share of the image's area of a random part.
        whole: whether without `numbers` it is the whole image, stretched, and not its centre.

    Raises:
        ImageError, OSError: as `open_image`. ValueError: a damaged shard.
    """
    if source.shard is None:
        with open_image(source.path) as image:
            part = cut(image, choose_box(upright_size(image), numbers, least, whole), (size, size))
    else:
        pixels = ImageShard.open(source.shard).read(source.row)
        if not pixels.size:
            raise ImageError(f"{source.path}: no image, as was found when {source.shard} was made of it")
        image = pillow().fromarray(pixels)
        part = cut(image, choose_box(image.size, numbers, least, whole), (size, size))
    mirrored = numbers is not None and numbers[-1] < 0.5
    return (part[:, ::-1] if mirrored else part).transpose(2, 0, 1)


def read_scaled(path: str, side: int) -> np.ndarray:
    """A whole image, upright, whose shorter side has `side` pixels; uint8, shape (height, width, 3).

    Raises:
        ImageError, OSError: as `open_image`.
    """
    with open_image(path) as image:
        whole = upright_size(image)
        scale = side / min(whole)
        width, height = (max(side, round(scale * length)) for length in whole)
        if max(width, height) > 100 * side:  # a line of pixels would become a huge image
            raise ImageError(f"its sides {image.width} and {image.height} differ by more than a factor of 100")
        return cut(image, (0, 0, *whole), (width, height))


def orientation(image: Picture) -> int:
    """The orientation of the camera, from the image's EXIF data: 1 (upright) to 8; 1 if unknown."""
    if image.format != "JPEG":
        image.load()  # Pillow would do it, because in a PNG the data may follow the pixels
    try:
        value = image.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged EXIF data of an image that may be intact
        return 1
    return value if value in TURNS else 1


def upright_size(image: Picture) -> tuple[int, int]:
    """(width, height) of the upright image."""
    return image.size[::-1] if orientation(image) >= 5 else image.size


def cut(image: Picture, box: Box, size: tuple[int, int]) -> np.ndarray:
    """A part of an image, upright, scaled to `size`, in three colours; uint8, shape (height, width, 3).

    Args:
        box: the part, in the upright image. size: (width, height).
    """
    (width, height), turn = upright_size(image), orientation(image)
    shrink = min((box[2] - box[0]) / size[0], (box[3] - box[1]) / size[1])
    if shrink >= 2:  # a JPEG can be decoded at a half, a quarter or an eighth of its size
        wanted = math.ceil(width / shrink), math.ceil(height / shrink)
        image.draft(None, wanted[::-1] if turn >= 5 else wanted)
        across, down = (now / then for now, then in zip(upright_size(image), (width, height), strict=True))
        box = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
    if image.mode.startswith("I"):  # grey of 16 bits, for which `convert` would clip values above 255
        grey = np.asarray(image)
        if 0 < grey.max() < 1 << 13:
            warn(DARK)
        image = pillow().fromarray((grey >> 8).astype(np.uint8))
    whole = image.convert("RGB")
    if turn in TURNS:
        whole = whole.transpose(pillow().Transpose[TURNS[turn]])
    return np.asarray(whole.resize(size, pillow().Resampling.BILINEAR, box))


def choose_box(size: tuple[int, int], numbers: np.ndarray | None, least: float = LEAST, whole: bool = False) -> Box:
    """A random part of an image of `size` (width, height); without `numbers` the square in its centre, or all of it.

    A random part has `least` to all of the area, and sides whose ratio is between 3/4 and 4/3. If ten tries give none
    that fits, it is the largest one in the centre with such a ratio.

    Source: Szegedy et al. (2015), "Going deeper with convolutions"; torchvision's RandomResizedCrop and CenterCrop.
    """
    width, height = size
    if numbers is None and whole:
        return 0, 0, width, height
    if numbers is None:
        side = CENTRE * min(size)
        return _centre(size, side, side)
    for area, ratio, left, top in numbers[:-1].reshape(TRIES, 4).tolist():
        area = width * height * (least + (1 - least) * area)
        ratio = RATIO[0] * (RATIO[1] / RATIO[0]) ** ratio
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = int(left * (width - w + 1)), int(top * (height - h + 1))
            return x, y, x + w, y + h
    return _centre(size, min(width, RATIO[1] * height), min(height, width / RATIO[0]))


def _centre(size: tuple[int, int], width: float, height: float) -> Box:
    x, y = (size[0] - width) / 2, (size[1] - height) / 2
    return x, y, x + width, y + height


def read_parts(
    sources: Sequence[Source], size: int, numbers: np.ndarray | None, least: float = LEAST, whole: bool = False
) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """`read_part` of several images, in a worker.

    Returns:
        Those that can be read, (images, 3, size, size), and for the others (position, reason).
    """
    parts, problems = [], []
    for k, source in enumerate(sources):
        try:
            parts.append(read_part(source, size, None if numbers is None else numbers[k], least, whole))
        except ImageError as error:
            problems.append((k, str(error)))
    return np.array(parts, np.uint8).reshape(-1, 3, size, size), problems


def image_workers(count: int) -> ProcessPoolExecutor:
    """Processes for decoding, which loaders can share; the caller shuts them down.

    They are spawned, because a rank of MPI cannot be forked safely. So a program that uses them needs ``if __name__ ==
    "__main__":``, as with multiprocessing.

    Raises:
        ValueError: count < 1.
    """
    pillow()
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin_worker)


@contextmanager
def use_workers(workers: int | Executor) -> Iterator[Executor]:
    """The given executor, or one with this number of processes, which end with the block; 0: `SerialExecutor`."""
    if isinstance(workers, Executor):
        yield workers
        return
    own = image_workers(workers) if workers else SerialExecutor()
    try:
        yield own
    finally:
        own.shutdown(cancel_futures=True)


class SerialExecutor(Executor):
    """An executor that runs in the calling thread, when a result is requested."""

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        return _LazyFuture(partial(fn, *args, **kwargs))


class _LazyFuture(Future):
    def __init__(self, work: Callable):
        super().__init__()
        self._work = work

    def result(self, timeout: float | None = None) -> Any:
        return self._work()


def _begin_worker() -> None:
    """Leaves Ctrl-C to the parent process, and ends this process if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
