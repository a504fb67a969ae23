"""What is queued on the device, in order: the list behind CUDA graphs, their twin in the simulator, and counts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Work = list[tuple[Callable, tuple]]

_recording: Work | None = None


def queue(function: Callable, *arguments) -> None:
    """Calls `function(*arguments)`, which queues one launch or copy on the device; everything queued passes here.

    `arguments` must name all memory that the work uses: a recording keeps it alive.
    """
    if _recording is not None:
        _recording.append((function, arguments))
    function(*arguments)


@contextmanager
def recording() -> Iterator[Work]:
    """Collects what is queued inside; `replay` does it again.

    Raises:
        RuntimeError: another recording is under way.
    """
    global _recording
    if _recording is not None:
        raise RuntimeError("launches are already being recorded, for a CUDA graph or a benchmark")
    _recording = work = []
    try:
        yield work
    finally:
        _recording = None


def replay(work: Work) -> None:
    """Queues recorded work again, on the same memory."""
    for function, arguments in work:
        function(*arguments)
