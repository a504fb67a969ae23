"""Collectives in order, and the thread that drives them, without MPI."""

import time

import pytest

from pytagi_ddp.distributed.engine.operations import Operations, Queue


class Piece:
    """A piece that ends at the k-th look at it, or fails there."""

    def __init__(self, looks: int, error: Exception | None = None):
        self.looks, self.error = looks, error

    def Test(self) -> bool:
        self.looks -= 1
        if self.looks <= 0 and self.error is not None:
            error, self.error = self.error, None  # once: a request that has failed is gone, and then looks complete
            raise error
        return self.looks <= 0


def new_queue() -> Queue:
    def raise_timeout(what, waited):
        raise TimeoutError(what)

    return Queue(lambda what: None, raise_timeout, Operations(0))


def test_what_fails_in_the_thread_is_raised_by_the_next_wait():
    queue = new_queue()
    with queue.operations.in_background():
        operation = queue.start("all_reduce", 4, iter([Piece(2, OSError("truncated"))]), 5)
        deadline = time.monotonic() + 5
        while queue.operations.broken is None and time.monotonic() < deadline:
            time.sleep(1e-3)
    with pytest.raises(RuntimeError, match=r"all_reduce #1 was cut short by OSError\('truncated'\)"):
        operation.wait()
    assert not operation.done
    with pytest.raises(RuntimeError, match="cannot go on with broadcast"):
        queue.start("broadcast", 4, iter([]), 5)


def test_an_operation_that_cannot_be_posted_is_not_taken_for_done():
    def requests():
        yield Piece(1)
        raise MemoryError("no room for the second piece")

    queue = new_queue()
    with pytest.raises(MemoryError):
        queue.start("all_reduce", 4, requests(), 5)
    assert isinstance(queue.operations.broken, MemoryError) and queue.completed == 0


def test_the_thread_may_end_what_the_program_waits_for(monkeypatch):
    class Clock:
        sleep = staticmethod(time.sleep)

        def monotonic(self):  # read while waiting: as if the thread had had its turn just then
            while queue._pending:
                queue.operations.advance(queue)
            return time.monotonic()

    queue = new_queue()
    monkeypatch.setattr("pytagi_ddp.distributed.engine.operations.time", Clock())
    queue.start("all_reduce", 4, iter([Piece(5)]), 5).wait()
    assert queue.completed == 1
    operation = queue.start("broadcast", 4, iter([Piece(5)]), 5)
    assert not operation.test()
    operation.wait()
    assert queue.completed == 2
