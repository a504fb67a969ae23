"""Random damages of a file: what a bad disk, a broken transfer or an attacker may do to it."""

import json
import math
import random
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

Mutation = tuple[int, int, int, int]  # which change, and three numbers that say where and how
TOKEN = re.compile(rb'"[^"\\]*"|[-+0-9.eE]+|[A-Za-z_]+|[\[\]{}]')
LONGEST = 100_000  # bytes that one change may add
NUMBERS = (0, 1, -1, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63)
# What replaces a word, number or bracket of a text, or is inserted: limits, wrong types, deep nesting, dangerous names.
TOKENS = (
    *(str(number).encode() for number in NUMBERS),
    *(b"null", b"true", b"false", b"NaN", b"-Infinity", b"1e999", b"-0.0", b"1e-400", b"9" * 5000, b"[]", b"{}"),
    *(b'""', b'"x"', b'"../victim"', b'"victim"', b'"\\u0000"', b'"\\ud800"', b'"step-victim.safetensors"', b"[[]]"),
    *(b"[" * 10_000, b'{"a":' * 10_000, b"[1," * 10_000, b"\xff\xfe", b"\xc3(", b"\0"),
    *(b'"F64"', b'"F16"', b'"BF16"', b'"F8_E4M3"', b'"I32"', b'"BOOL"', b'"pytagi_ddp 1"', b'"pytagi_ddp 9"'),
    *(b"c__builtin__\neval\n", b"cnumpy\nndarray\n", b"R", b"b", b"0", b"(", b"t", b"}", b"]", b"e", b"u", b"."),
)
VALUES = (*NUMBERS, 0.5, 1e300, math.nan, math.inf, None, True, "", "x", "\ud800", "../victim", "victim")


def _flip(data: bytearray, a: int, b: int, c: int) -> None:
    data[a % len(data)] ^= 1 << b % 8


def _set(data: bytearray, a: int, b: int, c: int) -> None:
    data[a % len(data)] = b % 256


def _number(data: bytearray, a: int, b: int, c: int) -> None:
    """Overwrites 1 to 8 bytes with an integer that is a limit of some type."""
    width, order = 1 << c % 4, ("little", "big")[c // 4 % 2]
    where = a % len(data)
    value = NUMBERS[b % len(NUMBERS)] % (1 << 8 * width)
    data[where : where + width] = value.to_bytes(width, order)


def _delete(data: bytearray, a: int, b: int, c: int) -> None:
    where = a % len(data)
    del data[where : where + 1 + b % 64]


def _cut(data: bytearray, a: int, b: int, c: int) -> None:
    del data[a % len(data) :]


def _copy(data: bytearray, a: int, b: int, c: int) -> None:
    """Inserts a copy of one part of the file at another place."""
    source, where = a % len(data), b % (len(data) + 1)
    data[where:where] = data[source : source + 1 + c % 256]


def _swap(data: bytearray, a: int, b: int, c: int) -> None:
    size = 1 + c % 32
    first, second = sorted((a % len(data), b % len(data)))
    if first + size <= second:
        data[first : first + size], data[second : second + size] = (
            data[second : second + size],
            data[first : first + size],
        )


def _repeat(data: bytearray, a: int, b: int, c: int) -> None:
    """Repeats a short part many times."""
    where = a % len(data)
    part = bytes(data[where : where + 1 + b % 8])
    data[where:where] = part * (c % (LONGEST // len(part)))


def _insert_token(data: bytearray, a: int, b: int, c: int) -> None:
    where = a % (len(data) + 1)
    data[where:where] = TOKENS[b % len(TOKENS)]


def _replace_token(data: bytearray, a: int, b: int, c: int) -> None:
    """Replaces a word, number or bracket by one of `TOKENS`, or by another one of the file."""
    found, other = (TOKEN.search(data, place % len(data)) for place in (a, c))
    if found:
        use_other = other is not None and b % 3 == 0
        data[found.start() : found.end()] = other[0] if use_other else TOKENS[b % len(TOKENS)]


def _edit_json(data: bytearray, a: int, b: int, c: int) -> None:
    """Changes, removes or doubles a value in a JSON file, or in the JSON header of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    start, stop = (8, 8 + size) if data[8:9] == b"{" and size < len(data) else (0, len(data))
    try:
        text = json.dumps(_edited(json.loads(data[start:stop]), random.Random(a ^ b << 24 ^ c << 48))).encode()
    except (ValueError, RecursionError):
        return
    data[start:stop] = text
    if start:
        data[:8] = len(text).to_bytes(8, "little")


def _edited(value: Any, rng: random.Random) -> Any:
    """A copy of a JSON value with one change somewhere in it, also within texts that are JSON themselves."""
    if isinstance(value, str) and value[:1] == "{" and rng.random() < 0.9:
        with suppress(ValueError, RecursionError):
            return json.dumps(_edited(json.loads(value), rng))
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice((rng.choice(VALUES), [value], {"x": value}, [], {}, str(value)))
    items = list(value.items() if isinstance(value, dict) else enumerate(value))
    place = rng.randrange(len(items))
    name, old = items[place]
    change = rng.random()
    if change < 0.1:
        del items[place]
    elif change < 0.2:
        items[place] = (rng.choice(("", "x", 0, items[0][0], f"{name}x")), old)
    elif change < 0.3:
        items.append((f"{name} again", rng.choice(items)[1]))
    else:
        items[place] = (name, _edited(old, rng))
    return {str(key): item for key, item in items} if isinstance(value, dict) else [item for _, item in items]


# Changes of texts come more often, as readers go further with such files before they refuse them.
CHANGES: tuple[Callable[[bytearray, int, int, int], None], ...] = (
    *(_flip, _set, _number, _delete, _cut, _copy, _swap, _repeat),
    *(_insert_token, _replace_token, _replace_token, *[_edit_json] * 4),
)


def mutate(data: bytes, mutations: Sequence[Mutation]) -> bytes:
    """The content of a file after these changes."""
    changed = bytearray(data)
    for which, *numbers in mutations:
        if changed:
            CHANGES[which % len(CHANGES)](changed, *numbers)
    return bytes(changed)


def random_mutations(rng: random.Random) -> list[Mutation]:
    """One to four changes, mostly one, as a file with several is often refused for the first of them alone."""
    return [
        (rng.randrange(len(CHANGES)), rng.getrandbits(24), rng.getrandbits(24), rng.getrandbits(24))
        for _ in range(rng.choice((1, 1, 1, 2, 3, 4)))
    ]
