"""What a thread queues on the device, in order: the list behind replayed steps and CUDA graphs, and behind counts."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Work = list[tuple[Callable, tuple]]


class _Recording(threading.local):
    work: Work | None = None
    for_replay = False


_recording = _Recording()


def queue(function: Callable, *arguments) -> None:
    """Calls `function(*arguments)`, which queues one launch or copy on the device; everything queued passes here.

    `arguments` must name all memory that the work uses: a recording keeps it alive.
    """
    if _recording.work is not None:
        _recording.work.append((function, arguments))
    function(*arguments)


def is_recording() -> bool:
    """Whether this thread records."""
    return _recording.work is not None


def meets_host(what: str) -> None:
    """Announces something between device and host, which a replay would miss.

    Raises:
        RuntimeError: a recording for a replay is under way.
    """
    if _recording.for_replay:
        raise RuntimeError(
            f"{what} within a part of a training step that is being recorded: its replay would miss that. Set "
            "pytagi_ddp.cuda.replay_launches = pytagi_ddp.cuda.use_graphs = False and report this"
        )


@contextmanager
def recording(for_replay: bool = False) -> Iterator[Work]:
    """Collects what this thread queues inside; `replay` does it again. for_replay: in place of the program inside.

    Raises:
        RuntimeError: another recording of this thread is under way; or, for a replay, see `meets_host`.
    """
    if is_recording():
        raise RuntimeError("launches are already being recorded, for a replay or a benchmark")
    work: Work = []
    _recording.work, _recording.for_replay = work, for_replay
    try:
        yield work
    finally:
        _recording.work, _recording.for_replay = None, False


def prepared(work: Work) -> Work:
    """The same work with less to do for each call, where a function offers that: `prepare(...) -> (function, ...)`."""
    return [f.prepare(*arguments) if hasattr(f, "prepare") else (f, arguments) for f, arguments in work]


def replay(work: Work) -> None:
    """Queues recorded work again, on the same memory."""
    for function, arguments in work:
        function(*arguments)
