"""An error on one rank ends the whole job.

Without this, all ranks would wait forever: Python prints a traceback and then waits in ``MPI_Finalize``. `AbortHook`
prints the first error of the job once, with its rank, and ends every rank.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pytagi_ddp.distributed.engine._insistent import insistent
from pytagi_ddp.distributed.engine.errors import CollectiveTimeoutError

STAGGER_SECONDS = 0.5  # times the rank: if all ranks fail alike, rank 0 prints the error and ends the others
STAGGER_LIMIT = 1.5
FORWARD_SECONDS = 0.05  # mpirun loses output that a rank wrote a few milliseconds before it aborts
TIMEOUT_GRACE_SECONDS = 0.5  # so that every rank prints where it waits before the first one aborts
ABORT_LIMIT_SECONDS = 3


class AbortHook:
    """Ends the MPI job from ``sys.excepthook`` and ``threading.excepthook``.

    A Ctrl-C also ends it from ``sys.unraisablehook``: in a callback from C, such as one of Numba's compiler, Python
    would drop the exception and continue.

    Hooks ignore further Ctrl-C, and start again after one that comes just before. If Python leaves a hook in spite of
    this, `unreported` is True.

    Earlier hooks, except Python's own, are called after the traceback is printed and before the job ends. `SystemExit`
    does not reach an excepthook: see `pytagi_ddp.distributed.engine.job.Job.leave`.

    `abort` ends all ranks with an exit code; it is to be set as soon as MPI runs.
    """

    def __init__(self, rank: int, world_size: int | None):
        self.rank = rank
        self.world_size = world_size  # None while it is not known
        self.abort: Callable[[int], None] = _die_of_a_signal
        self._pid = os.getpid()
        self._installed = False
        self._failing = threading.Lock()
        self._previous, self._previous_in_thread = sys.excepthook, threading.excepthook
        self._previous_unraisable = sys.unraisablehook

    def install(self) -> None:
        """Installs the hooks, unless they are installed already."""
        if not self._installed:
            self._previous, sys.excepthook = sys.excepthook, self._on_exception
            self._previous_in_thread, threading.excepthook = threading.excepthook, self._on_thread_exception
            self._previous_unraisable, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
            self._installed = True

    def remove(self) -> None:
        """Restores the earlier hooks, unless other hooks were installed since."""
        if self._installed and sys.excepthook == self._on_exception:
            sys.excepthook = self._previous
        if self._installed and threading.excepthook == self._on_thread_exception:
            threading.excepthook = self._previous_in_thread
        if self._installed and sys.unraisablehook == self._on_unraisable:
            sys.unraisablehook = self._previous_unraisable
        self._installed = False

    @insistent
    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._is_mine():
            ignore_interrupts()
        custom = self._previous is not sys.__excepthook__
        if not self._is_mine():
            self._previous(kind, error, trace)
        else:
            self._fail(kind, error, trace, (lambda: self._previous(kind, error, trace)) if custom else None)

    def _on_thread_exception(self, args: threading.ExceptHookArgs) -> None:
        custom = self._previous_in_thread is not threading.__excepthook__
        if not self._is_mine() or args.exc_type is SystemExit:
            self._previous_in_thread(args)
        else:
            then = (lambda: self._previous_in_thread(args)) if custom else None
            self._fail(args.exc_type, args.exc_value, args.exc_traceback, then)

    @insistent
    def _on_unraisable(self, args: Any) -> None:
        if self._is_mine() and issubclass(args.exc_type, KeyboardInterrupt):
            ignore_interrupts()
            self._fail(args.exc_type, args.exc_value, args.exc_traceback, None)
        else:
            self._previous_unraisable(args)

    @property
    def unreported(self) -> bool:
        """Whether a Ctrl-C has ended this program, and another one the hook that should have reported it."""
        kind = getattr(sys, "last_type", None)
        ended = isinstance(kind, type) and issubclass(kind, KeyboardInterrupt)
        return ended and self._is_mine() and not self._failing.locked() and not hasattr(sys, "ps1")

    def _is_mine(self) -> bool:
        return self._installed and os.getpid() == self._pid  # a forked worker must not end the job

    def _fail(
        self,
        kind: type[BaseException],
        error: BaseException | None,
        trace: TracebackType | None,
        then: Callable[[], Any] | None,
    ) -> None:
        if not self._failing.acquire(blocking=False):
            return  # another thread is about to end the job
        text = "".join(traceback.format_exception(kind, error, trace))
        if issubclass(kind, CollectiveTimeoutError):
            self.say(text)
            time.sleep(TIMEOUT_GRACE_SECONDS)
        else:
            self._say_if_first(text)
        if then is not None:
            with contextlib.suppress(Exception):
                then()
        self.end(130 if issubclass(kind, KeyboardInterrupt) else 1)

    def end_with(self, message: str, code: int = 1) -> None:
        """Prints the message and ends every rank. If several ranks have the same reason, the lowest one does it."""
        ignore_interrupts()
        self._say_if_first(message)
        self.end(code)

    def _say_if_first(self, text: str) -> None:
        time.sleep(min(STAGGER_SECONDS * self.rank, STAGGER_LIMIT))
        self.say(text)
        time.sleep(FORWARD_SECONDS)

    def say(self, text: str) -> None:
        """Writes a message with the number of this rank in one call, so that lines of ranks do not mix."""
        unwritable = (OSError, ValueError, AttributeError)  # a closed stream must not prevent the end of the job
        with contextlib.suppress(*unwritable):
            sys.stdout.flush()
        with contextlib.suppress(*unwritable):
            sys.stderr.write(f"[rank {self.rank}/{self.world_size or '?'}] {text.rstrip()}\n")
            sys.stderr.flush()

    def end(self, code: int) -> None:
        """Ends every rank of the job with an exit code, even if MPI is stuck."""
        ignore_interrupts()
        with contextlib.suppress(Exception):
            faulthandler.dump_traceback_later(ABORT_LIMIT_SECONDS, exit=True, file=2)
        self.abort(code)
        os._exit(code)


def ignore_interrupts() -> None:
    """Ignores Ctrl-C from now on, also one that Python has not handled yet."""
    with contextlib.suppress(ValueError):  # not the main thread, which is the only one that Python interrupts
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _die_of_a_signal(code: int) -> None:
    """Ends the job while MPI does not run, by a signal: Hydra lets the others wait for a rank that exits."""
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
