"""Pictures in files: decoded, cut and scaled by Pillow, in worker processes. What the files hold is not trusted."""

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

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

FORMATS = ("JPEG", "PNG", "WEBP")  # what a file holds counts, not its name: some .JPEG of ImageNet is a PNG
TRIES = 10
NUMBERS = 4 * TRIES + 1  # random ones that an image takes
LEAST, RATIO = 0.08, (3 / 4, 4 / 3)  # of a random part: least share of the image's area, width over height
CENTRE = 224 / 256  # side of the part that is evaluated, over the image's shorter side
ORIENTATION = 0x0112  # the number of EXIF's field: how the camera was held
# What makes an image upright, a name in `Image.Transpose`, by that field; all else is upright as it is.
TURNS = {
    **{2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM"},
    **{5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90"},  # these exchange the sides
}
Box = tuple[float, float, float, float]  # left, top, right, bottom


class ImageError(ValueError):
    """A file that holds no image that can be read; names it."""


class Source(NamedTuple):
    """Where an image is: a file, or a row of a shard that was made of it."""

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
    """The image in a file: its size is known, its pixels are decoded where they are first used.

    Raises:
        ImageError: no image, a damaged or truncated one, or more pixels than Pillow's limit (`Image.MAX_IMAGE_PIXELS`);
            also from within the block.
        OSError: no such file, no regular one, or one that cannot be read.
    """
    image_module = pillow()
    try:
        file_size(path)
        with image_module.open(path, formats=FORMATS) as image:
            pixels, limit = image.width * image.height, image_module.MAX_IMAGE_PIXELS
            if limit is not None and pixels > limit:
                raise ImageError(f"{pixels} pixels are more than Pillow's limit of {limit}, a decompression bomb maybe")
            yield image
    except Exception as error:  # whatever a damaged file may bring about: Pillow lists no types
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ImageError(f"{path}: {str(error) or repr(error)}") from error


def read_part(source: Source, size: int, numbers: np.ndarray | None, least: float = LEAST) -> np.ndarray:
    """The part of an image, upright, that a network sees; uint8, shape (3, size, size).

    Args:
        source: the image.
        size: of both sides.
        numbers: `NUMBERS` uniform ones: a random part, mirrored or not. None: the centre.
        least: share of the image's area that a random part has at least.

    Raises:
        ImageError, OSError: as `open_image`. ValueError: a damaged shard.
    """
    if source.shard is None:
        with open_image(source.path) as image:
            part = cut(image, choose_box(upright_size(image), numbers, least), (size, size))
    else:
        pixels = ImageShard.open(source.shard).read(source.row)
        if not pixels.size:
            raise ImageError(f"{source.path}: no image, as was found when {source.shard} was made of it")
        image = pillow().fromarray(pixels)
        part = cut(image, choose_box(image.size, numbers, least), (size, size))
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
        if max(width, height) > 100 * side:  # a line of pixels would become a picture that fills the memory
            raise ImageError(f"its sides {image.width} and {image.height} differ by more than a factor of 100")
        return cut(image, (0, 0, *whole), (width, height))


def orientation(image: Picture) -> int:
    """How the camera was held, by the image's EXIF data: 1 (upright) to 8; 1 where nothing readable says so."""
    if image.format != "JPEG":
        image.load()  # otherwise Pillow does it, because in a PNG the data may follow the pixels
    try:
        value = image.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged data of a picture that may well be whole
        return 1
    return value if value in TURNS else 1


def upright_size(image: Picture) -> tuple[int, int]:
    """(width, height) of the image once it is turned."""
    return image.size[::-1] if orientation(image) >= 5 else image.size


def cut(image: Picture, box: Box, size: tuple[int, int]) -> np.ndarray:
    """A part of an image, turned upright, scaled to `size`, in three colours; uint8, shape (height, width, 3).

    Args:
        box: the part, in the upright image. size: (width, height).
    """
    (width, height), turn = upright_size(image), orientation(image)
    shrink = min((box[2] - box[0]) / size[0], (box[3] - box[1]) / size[1])
    if shrink >= 2:  # a JPEG is decoded at a half, a quarter or an eighth of its size right away
        wanted = math.ceil(width / shrink), math.ceil(height / shrink)
        image.draft(None, wanted[::-1] if turn >= 5 else wanted)
        across, down = (now / then for now, then in zip(upright_size(image), (width, height), strict=True))
        box = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
    if image.mode.startswith("I"):  # grey of 16 bits, of which `convert` would make white all that is above 255
        image = pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8))
    whole = image.convert("RGB")
    if turn in TURNS:
        whole = whole.transpose(pillow().Transpose[TURNS[turn]])
    return np.asarray(whole.resize(size, pillow().Resampling.BILINEAR, box))


def choose_box(size: tuple[int, int], numbers: np.ndarray | None, least: float = LEAST) -> Box:
    """A random part of an image of `size` (width, height); without `numbers` the square in its centre.

    A random part has `least` to all of the area, and sides whose ratio is between 3/4 and 4/3. Where ten tries give
    none that fits, it is the largest one in the centre with such a ratio.

    Source: Szegedy et al. (2015), "Going deeper with convolutions"; torchvision's RandomResizedCrop and CenterCrop.
    """
    width, height = size
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
    sources: Sequence[Source], size: int, numbers: np.ndarray | None, least: float = LEAST
) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """`read_part` of several images, in a worker.

    Returns:
        Those that can be read, (images, 3, size, size), and for the others (position, why not).
    """
    parts, problems = [], []
    for k, source in enumerate(sources):
        try:
            parts.append(read_part(source, size, None if numbers is None else numbers[k], least))
        except ImageError as error:
            problems.append((k, str(error)))
    return np.array(parts, np.uint8).reshape(-1, 3, size, size), problems


def image_workers(count: int) -> ProcessPoolExecutor:
    """Processes for decoding, to be shared among loaders and shut down by whoever made them.

    They are started by spawn, not forked (a rank of MPI cannot be forked safely), so a program that uses them needs
    ``if __name__ == "__main__":``, as with multiprocessing.

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
    """An executor that works in the calling thread, when a result is asked for."""

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        return _LazyFuture(partial(fn, *args, **kwargs))


class _LazyFuture(Future):
    def __init__(self, work: Callable):
        super().__init__()
        self._work = work

    def result(self, timeout: float | None = None) -> Any:
        return self._work()


def _begin_worker() -> None:
    """Leaves Ctrl-C to the parent process, and ends if the parent is killed, instead of waiting for it forever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
