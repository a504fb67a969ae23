"""Signals that ask a training to stop: at a step, on all ranks, with the handlers of before put back."""

import os
import signal
import threading

import pytest

from pytagi_ddp.checkpoint import StopOnSignal
from pytagi_ddp.nn import DDPConfig, DDPSequential, Linear, Sequential


def network():
    return Sequential(Linear(2, 1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_asks_for_a_stop(number):
    ddp = DDPSequential(network(), DDPConfig(backend="serial"))
    former = signal.getsignal(number)
    with StopOnSignal(ddp) as stop:
        for _ in range(2):
            os.kill(os.getpid(), number)
        assert stop.received == number
        assert not ddp.stop_requested
        ddp.step()
        assert ddp.stop_requested
    assert signal.getsignal(number) == former


def test_a_signal_without_a_name():
    ddp = DDPSequential(network(), DDPConfig(backend="serial"))
    with StopOnSignal(ddp, [signal.SIGRTMIN + 1]) as stop:
        signal.raise_signal(signal.SIGRTMIN + 1)
        ddp.step()
    assert stop.received == signal.SIGRTMIN + 1 and ddp.stop_requested


def test_handlers_are_put_back_whatever_happens():
    ddp = DDPSequential(network(), DDPConfig(backend="serial"))
    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(OSError, match="Invalid argument"):
        StopOnSignal(ddp, (signal.SIGTERM, signal.SIGKILL)).__enter__()
    assert signal.getsignal(signal.SIGTERM) == former
    errors = []

    def elsewhere():
        try:
            StopOnSignal(ddp).__enter__()
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(errors) == 1
    assert "main thread" in errors[0]


def test_a_network_that_knows_of_no_stop_is_refused():
    with pytest.raises(
        TypeError, match=r"takes a DDPSequential .*, FSDPSequential or PipelineSequential, got Sequential"
    ):
        StopOnSignal(Sequential(Linear(1, 1)))
