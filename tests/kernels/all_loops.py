"""Runs every loop of `kernels.cpu` as Python, where an index beside an array is an error: see test_shapes.py.

With an argument, it runs the loops that several threads share: each thread's share alone, see test_threads.py.
"""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from pytagi_ddp.kernels.cpu import layers
from pytagi_ddp.kernels.cpu.layers.recurrent import address_of_product
from pytagi_ddp.kernels.formulas.likelihood import LIKELIHOODS

LENGTHS = dict(zip("bcfhknpqrwxymn", (3, 4, 5, 7, 2, 11, 9, 6, 8, 10, 2, 3, 12, 13), strict=True))
LSTM = {"b": 2, "t": 4, "q": 4, "i": 2, "o": 3, "g": 12, "w": 5, "h": 12, "s": 6, "e": 6}
# What else a loop's lengths and numbers have to be, for those that say so.
FITTING = {
    "attention._rotate": {"n": 12, "t": 3, "s": 4, "h": 3},
    "batch_norm._sum_parts": {"r": 300, "k": 3},
    "batch_norm._forward": {"r": 129},
    "batch_norm._forward_added": {"r": 129},
    "batch_norm._forward_onto": {"r": 129},
    "batch_norm._subtract": {"r": 129},
    "batch_norm._subtract_through": {"r": 129},
    "batch_norm._backward": {"r": 129, "k": 2, "g": 0},
    "batch_norm._backward_through": {"r": 129, "k": 2},
    "columns._add_partials": {"f": 5, "g": 5},
    "elementwise._copy_columns": {"f": 2, "s": 4, "c": 3},
    "embedding._forward": {"i": 6},
    "embedding._backward": {"i": 6, "k": 17},
    "encoding._place": {"i": 6, "f": 7, "k": 5},
    "encoding._moments": {"i": 6, "f": 7, "k": 5},
    "encoding._backward": {"i": 6, "f": 7, "k": 5},
    "layer_norm._backward": {"g": 5},
    "output_update._update_heteros": {"n": 6, "m": 12},
    "prior.polar_pairs": {"w": 9, "p": 4},
    "recurrent._forward_products": LSTM | {"p": 5 * 3, "m": 3 * 3},
    "recurrent._backward_products": LSTM | {"p": 10 * 3},
    "recurrent._forward": LSTM | {"b": 17, "p": 5 * 3, "m": 3 * 3, "z": 12 * 3},
    "recurrent._backward": LSTM | {"b": 17, "p": 10 * 3} | dict(zip("ABCDEF", (17, 4, 2) * 2, strict=True)),
    "recurrent._posterior": {"o": 3, "m": 6},
    "recurrent._record": LSTM,
    "recurrent._smooth": {"t": 4, "o": 3},
    "half_precision.encode_float16": {"n": 1025, "k": 2},
    "half_precision.decode_float16": {"n": 2048, "k": 2},
}


FITTING |= {f"likelihood.{name}": {"k": 9, "n": 4, "p": 1, "q": 1, "w": 12, "first": 2} for name in LIKELIHOODS}
FITTING["likelihood._categorical"] = {"b": 33, "k": 9, "w": 33, "first": 2, "classes": 5}


def loops() -> Iterator[tuple[str, Callable]]:
    """(name, loop) of all."""
    for info in pkgutil.iter_modules(layers.__path__):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"{layers.__name__}.{info.name}")
            found = list(vars(module).values()) + list(getattr(module, "_LOOPS", {}).values())
            for loop in {id(f): f for f in found if hasattr(f, "shapes") and f.__module__ == module.__name__}.values():
                yield f"{info.name}.{loop.__name__}", loop


def arguments(name: str, loop: Any, random: np.random.Generator) -> tuple:
    """Arguments that fit: arrays of small positive numbers, or of whole ones of which many are out of range."""
    lengths = LENGTHS | FITTING.get(name, {})
    numbers = {"kernel_size": 3, "rows": 3, "accumulate": bool(random.integers(2)), "factor": 0.5}
    numbers["product"] = address_of_product()
    made: list[Any] = []
    for argument, word in zip(loop.shapes.names, loop.shapes.words, strict=True):
        if word == "_":
            made.append(numbers.get(argument, 1))
        elif word[0] == "=":
            made.append(lengths[word[1:]])
        else:
            shape = [int(letter) if letter.isdigit() else lengths[letter] for letter in word]
            whole = argument in (
                "winner",
                "index",
                "starts",
                "stops",
                "words",
                "half",
                "exponents",
                "non_finite",
                "found",
            )
            values = random.integers(-50, 200, shape) if whole else np.abs(random.normal(size=shape)).astype(np.float32)
            if whole:
                kinds = {"words": np.uint32, "half": np.uint16, "exponents": np.int8}
                values = np.abs(values).astype(kinds[argument]) if argument in kinds else values.astype(np.int32)
            made.append(values)
    return tuple(made)


def shared(loop: Any) -> bool:
    """Whether several threads share its iterations."""
    return loop.__wrapped__.__code__.co_varnames[:2] == ("thread", "threads")


def conflict(name: str, loop: Any, threads: int) -> str:
    """What two threads of a loop do to each other: both write an element, or one reads what the other writes. "" if
    nothing.

    The share of each thread is computed alone, on copies of the arrays, and then those of all one after the other, in
    both orders.
    """
    given = arguments(name, loop, np.random.default_rng(0))
    if "starts" in loop.shapes.names:  # segments of parameters do not overlap
        segments = {"starts": [0, 2, 3], "stops": [2, 3, 6]}
        given = tuple(
            np.resize(np.array(segments[argument], np.int32), value.shape) if argument in segments else value
            for argument, value in zip(loop.shapes.names, given, strict=True)
        )

    def results(order: Iterable[int]) -> list[np.ndarray]:
        copies = [np.copy(a) if isinstance(a, np.ndarray) else a for a in given]
        for thread in order:
            loop.__wrapped__(thread, threads, *copies)
        return [a.view(f"u{a.itemsize}") for a in copies if isinstance(a, np.ndarray)]

    before, alone = results(()), [results([thread]) for thread in range(threads)]
    if sum(any((a != b).any() for a, b in zip(after, before, strict=True)) for after in alone) < 2:
        return f"{name}: only one of {threads} threads has something to write"
    forwards, backwards = results(range(threads)), results(reversed(range(threads)))
    for k, start in enumerate(before):
        changed = [after[k] != start for after in alone]
        if (np.sum(changed, axis=0) > 1).any():
            return f"{name}: two of {threads} threads write an element of array {k}"
        merged = start.copy()
        for where, after in zip(changed, alone, strict=True):
            merged[where] = after[k][where]
        if not (np.array_equal(merged, forwards[k]) and np.array_equal(merged, backwards[k])):
            return f"{name}: one of {threads} threads reads what another writes to array {k}"
    return ""


if __name__ == "__main__":  # with NUMBA_DISABLE_JIT
    with np.errstate(all="ignore"):
        for name, loop in loops():
            if not sys.argv[1:]:
                loop(*arguments(name, loop, np.random.default_rng(0)))  # the same whatever other loops there are
                print(name)
            elif shared(loop):
                print(conflict(name, loop, 2) or conflict(name, loop, 3) or name)
