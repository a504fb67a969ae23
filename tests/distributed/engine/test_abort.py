"""The hook that aborts a job when a rank fails, with an abort that only takes notes."""

import ctypes
import operator
import os
import sys
import threading
import types
from functools import partial

import pytest

from pytagi_ddp.distributed.engine import abort
from pytagi_ddp.distributed.engine.abort import AbortHook


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def hook(monkeypatch):
    def end(code):
        raise Ended(code)

    monkeypatch.setattr(abort.faulthandler, "dump_traceback_later", lambda *_, **__: None)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    hook = AbortHook(1, 4)
    hook.abort = end
    hook.install()
    yield hook
    hook.remove()


def raise_into_hook(error):
    sys.excepthook(type(error), error, error.__traceback__)


@pytest.mark.parametrize(("error", "code"), [(ValueError("bad shape"), 1), (KeyboardInterrupt(), 130)])
def test_prints_once_with_the_rank_and_ends_with_a_code(hook, capsys, error, code):
    with pytest.raises(Ended) as ended:
        raise_into_hook(error)
    assert ended.value.args == (code,)
    assert capsys.readouterr().err.startswith(f"[rank 1/4] {type(error).__name__}")
    raise_into_hook(error)  # a second error, of another thread, neither prints nor ends anything
    assert capsys.readouterr().err == ""


def test_an_interrupt_that_python_would_drop_ends_the_job(hook, monkeypatch, capsys):
    hook.remove()
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", mine := seen.append)
    hook.install()
    harmless, interrupt = (
        types.SimpleNamespace(exc_type=type(error), exc_value=error, exc_traceback=None)
        for error in (ValueError("in __del__"), KeyboardInterrupt())
    )
    sys.unraisablehook(harmless)
    with pytest.raises(Ended, match="130"):
        sys.unraisablehook(interrupt)
    assert seen == [harmless]
    assert capsys.readouterr().err == "[rank 1/4] KeyboardInterrupt\n"
    hook.remove()
    assert sys.unraisablehook is mine


def test_an_earlier_hook_is_called_and_put_back(hook, monkeypatch):
    hook.remove()
    seen = []
    monkeypatch.setattr(sys, "excepthook", mine := lambda *args: seen.append(args[1]))
    hook.install()
    error = ValueError("x")
    with pytest.raises(Ended):
        raise_into_hook(error)
    assert seen == [error]
    hook.remove()
    assert sys.excepthook is mine


def test_a_later_hook_stays_and_reaches_the_earlier_one(hook, capsys):
    ours = sys.excepthook
    sys.excepthook = later = lambda *args: ours(*args)
    hook.remove()
    assert sys.excepthook is later
    raise_into_hook(ValueError("after removal"))
    assert capsys.readouterr().err == "ValueError: after removal\n"


def test_system_exit_in_a_thread_ends_only_the_thread(hook):
    thread = threading.Thread(target=sys.exit)
    thread.start()
    thread.join()


def test_a_forked_process_does_not_end_the_job(hook, monkeypatch, capsys):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    raise_into_hook(ValueError("in a worker"))
    assert capsys.readouterr().err == "ValueError: in a worker\n"


def test_an_interrupt_just_before_a_hook_does_not_prevent_it(hook, capsys):
    """It is not handled before the hook begins: nothing between the two is Python code."""
    calls = (ctypes.pythonapi.PyErr_SetInterrupt, partial(sys.excepthook, ValueError, ValueError("bad shape"), None))
    with pytest.raises(Ended, match="1"):
        list(map(operator.methodcaller("__call__"), calls))
    assert capsys.readouterr().err.startswith("[rank 1/4] ValueError: bad shape")
