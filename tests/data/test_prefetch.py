import gc
import threading
import time
import traceback

import pytest

from pytagi_ddp.data.prefetch import prefetch


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert threads() == []


@pytest.mark.parametrize("depth", [1, 2, 50])
def test_yields_everything_in_order(depth):
    assert list(prefetch(iter(range(20)), depth)) == list(range(20))
    assert list(prefetch([], depth)) == []


def test_works_ahead_by_no_more_than_depth():
    made = []

    def items():
        for i in range(20):
            made.append(i)
            yield i

    source = prefetch(items(), 3)
    assert next(source) == 0
    deadline = time.monotonic() + 5
    while len(made) < 5 and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    assert len(made) == 5  # one handed out, three in the queue, one waiting for room
    source.close()


def test_no_thread_before_the_first_item_is_asked_for():
    source = prefetch(range(5), 2)
    assert threads() == []
    next(source)
    assert len(threads()) == 1
    assert threads()[0].daemon
    source.close()


def test_break_ends_the_thread():
    for item in prefetch(iter(range(10**9)), 2):
        if item == 3:
            break
    assert threads() == []


@pytest.mark.parametrize("interruption", [RuntimeError, KeyboardInterrupt])
def test_an_exception_in_the_loop_ends_the_thread(interruption):
    with pytest.raises(interruption):
        for _ in prefetch(iter(range(10**9)), 2):
            raise interruption
    assert threads() == []


@pytest.mark.parametrize("started", [False, True])
def test_an_interrupt_while_the_thread_starts_ends_it(started, monkeypatch):
    class Interrupted(threading.Thread):
        def start(self):
            if started:
                super().start()
            raise KeyboardInterrupt

    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(prefetch(iter(range(10**9)), 2))
    assert threads() == []


def test_garbage_collection_ends_the_thread():
    source = prefetch(iter(range(10**9)), 2)
    next(source)
    del source
    gc.collect()
    assert threads() == []


def test_an_exception_while_making_an_item_arrives_in_its_place_with_its_traceback():
    def broken_items():
        yield 1
        raise KeyError("item two")

    source = prefetch(broken_items(), 2)
    assert next(source) == 1
    with pytest.raises(KeyError, match="item two") as caught:
        next(source)
    assert "broken_items" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
