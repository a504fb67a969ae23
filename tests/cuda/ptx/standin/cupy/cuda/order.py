"""Finds work on several streams that is not ordered against a collective on the same memory, as an event is missing.

Each piece of work has a number on its stream. For each stream, a clock says up to which number its work is known to be
done before: by the events that were waited for, and by what the host has seen. Tags of each word of memory say which
launch or copy touched it last. If that is not ordered against a collective, a GPU may do both in another order than
they are done here.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tests.cuda.ptx.machine import SERIAL_BITS, SERIAL_SHIFT, Piece, machine

Clock = dict[int, int]  # of each stream (its handle) how much of its work; never changed


class Place(NamedTuple):
    """Where work stands."""

    stream: int  # its handle
    number: int
    behind: Clock  # the work of other streams that it comes after

    def before(self, other: "Place") -> bool:
        """Whether this work is done when `other` begins."""
        return (other.number if other.stream == self.stream else other.behind.get(self.stream, 0)) >= self.number


class Unordered(NamedTuple):
    """A problem: work and a collective touch the same memory, with no event between them."""

    kernel: str
    kind: str


_places: dict[int, Place] = {}  # of launches and copies, by their serial
_collectives: list[tuple[str, Place, Piece]] = []  # those that other streams may not have waited for yet
_doing: list[Place] = []  # what is being done, and in it what that waits for
_last = 0  # serial that has got its place


def together(a: Clock, b: Clock) -> Clock:
    """Behind both."""
    return {stream: max(a.get(stream, 0), b.get(stream, 0)) for stream in a.keys() | b.keys()}


def do(work: Callable[[], None], place: Place) -> None:
    """Does one piece of work of a stream."""
    global _last
    before = machine.serial
    _doing.append(place)
    try:
        work()
    finally:
        _doing.pop()
    if machine.serial in (before, _last) or not _several():  # nothing, or a wait for other streams, whose work it was
        return
    _last = machine.serial
    serial = _last & SERIAL_BITS
    _places[serial] = place
    for name, collective, piece in _collectives:
        if not collective.before(place) and (_touched_by(piece) == serial).any():
            _report(name)


def touch(*pieces: tuple[Piece, bool]) -> None:
    """A copy or a collective reads memory, or (True) writes it."""
    if _several():
        machine.serial += 1
        for piece, writes in pieces:
            _tags(piece)[:, 0 if writes else 1] = np.uint64((machine.serial & SERIAL_BITS) << SERIAL_SHIFT)


def begin_collective(name: str, *pieces: tuple[Piece, bool]) -> None:
    """What is being done is a collective, which reads memory, or (True) writes it."""
    here = _doing[-1]
    _collectives[:] = [known for known in _collectives if not _all_behind(known[1])]
    for piece, writes in pieces:
        touched = _touched_by(piece)
        for serial in np.unique(touched if writes else touched[:, 0]).tolist():
            other = _places.get(serial)
            if other is not None and not other.before(here):
                _report(name)
        if writes:
            _collectives.append((name, here, piece))
    touch(*pieces)


def _several() -> bool:
    from cupy import cuda  # here, as it imports this module

    return len(cuda.streams) > 1


def _all_behind(place: Place) -> bool:
    """Whether all work that is still to come on other streams comes after this."""
    from cupy import cuda  # here, as it imports this module

    others = (stream for stream in list(cuda.streams.values()) if stream.ptr != place.stream)
    return all(stream.next_behind.get(place.stream, 0) >= place.number for stream in others)


def _tags(piece: Piece) -> np.ndarray:
    """Of its words: by whom each was last written, and by whom read."""
    return piece.memory.tags[piece.offset // 4 : (piece.offset + piece.size + 3) // 4]


def _touched_by(piece: Piece) -> np.ndarray:
    return _tags(piece) >> np.uint64(SERIAL_SHIFT)


def _report(name: str) -> None:
    problem = Unordered(name, "work of another stream touches its memory, with no event between them")
    if problem not in machine.problems:
        machine.problems.append(problem)
