"""Recording of the work that a thread queues on the device, for replayed steps, CUDA graphs and counts of launches."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Work = list[tuple[Callable, tuple]]


class _Recording(threading.local):
    work: Work | None = None
    for_replay = False


_recording = _Recording()


def queue(function: Callable, *arguments) -> None:
    """Calls `function(*arguments)`, which queues one launch or copy on the device; all queued work goes through here.

    `arguments` must include all memory that the work uses: a recording keeps it alive.
    """
    if _recording.work is not None:
        _recording.work.append((function, arguments))
    function(*arguments)


def is_recording() -> bool:
    """Whether this thread records."""
    return _recording.work is not None


def refuse_host_transfer(what: str) -> None:
    """To be called before a transfer `what` between device and host, which a replay would not repeat.

    Raises:
        RuntimeError: a recording for a replay is in progress.
    """
    if _recording.for_replay:
        raise RuntimeError(
            f"{what} within a part of a training step that is being recorded: its replay would miss that. Set "
            "pytagi_ddp.cuda.replay_launches = pytagi_ddp.cuda.use_graphs = False and report this"
        )


@contextmanager
def recording(for_replay: bool = False) -> Iterator[Work]:
    """Collects the work that this thread queues in the block. for_replay: `replay` replaces the whole block.

    Raises:
        RuntimeError: another recording of this thread is in progress; with for_replay, also see `refuse_host_transfer`.
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
    """The same work with less overhead per call, for functions with `prepare(...) -> (function, arguments)`."""
    return [f.prepare(*arguments) if hasattr(f, "prepare") else (f, arguments) for f, arguments in work]


def replay(work: Work) -> None:
    """Queues recorded work again, on the same memory."""
    for function, arguments in work:
        function(*arguments)
