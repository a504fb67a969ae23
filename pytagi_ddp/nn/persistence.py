"""Parameters of a network as dictionaries and files.

A file has the safetensors format, and its header begins with `_BEGINNING` and a checksum of all other bytes, so that
damage is noticed before anything is parsed. In files of earlier formats the checksum covers the values alone.
"""

import json
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from pytagi_ddp.files import atomic_write, file_size, read_file
from pytagi_ddp.nn import pytagi_format
from pytagi_ddp.nn.architecture import architecture, first_difference, first_other_size, sizes
from pytagi_ddp.nn.state import Array
from pytagi_ddp.nn.validate import check_finite, check_variances, flat_float32

if TYPE_CHECKING:
    from pytagi_ddp.nn.layer import BaseLayer
    from pytagi_ddp.nn.network_parameters import NetworkParameters

FIELDS = ("mu_w", "var_w", "mu_b", "var_b")
KINDS = ("running", "carried")  # kinds of state that is not learned; the suffix of its entries
SUFFIXES = tuple(f".{kind}" for kind in KINDS)
BESIDE = "beside"  # key of the arrays of a file that do not belong to the network
FORMAT = "pytagi_ddp 3"
FORMAT_OF_VALUES = "pytagi_ddp 2"  # the checksum covers the values, not the header
FORMAT_OF_SIZES = "pytagi_ddp 1"  # likewise, and the architecture holds sizes instead of settings
_BEGINNING = f'{{"__metadata__":{{"format":"{FORMAT}","crc32":"'.encode()
_DIGITS = slice(8 + len(_BEGINNING), 8 + len(_BEGINNING) + 8)  # where the checksum stands, in hexadecimal digits
MAX_HEADER = 8 << 20  # bytes; 100 per tensor and 300 per layer are usual, and parsing takes 30 times as much memory
CSV_SUFFIXES = ("_1_mw.csv", "_2_Sw.csv", "_3_mb.csv", "_4_Sb.csv")

Place = Callable[[], Sequence[Array]]


class StateDict(dict[str, tuple[np.ndarray, ...]]):
    """Key of a layer -> (mu_w, var_w, mu_b, var_b), flat float32 arrays, empty where there are none.

    A key is `<layer name>.<place>`, as in pytagi: `Linear.2`, `Conv2d.main.3.0` (child 0 of the main block of layer
    3), `BatchNorm2d.shortcut.4.2`. Running statistics stand under `<key>.running` as (mean, var, empty, empty), what a
    layer carries from call to call under `<key>.carried`. `==` compares all arrays.
    """

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, dict)
            and self.keys() == other.keys()
            and all(len(self[k]) == len(other[k]) and all(map(np.array_equal, self[k], other[k])) for k in self)
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


def state_names(leaf: "BaseLayer", kind: str) -> list[str]:
    return [tensor.name for tensor in leaf.state_tensors() if tensor.kind == kind]


def state_dict(model: "NetworkParameters", carried: bool = False) -> StateDict:
    host = model.kernels.array.to_host
    result = StateDict()
    for key, leaf in model.named_leaves():
        if leaf.parameters is not None:
            model.arena.bring(leaf)
            result[key] = tuple(host(getattr(leaf, field)) for field in FIELDS)
        for kind in KINDS if carried else KINDS[:1]:
            if names := state_names(leaf, kind):
                empty = [np.zeros(0, np.float32)] * (len(FIELDS) - len(names))
                result[f"{key}.{kind}"] = (*(host(leaf.state[name]) for name in names), *empty)
    return result


def load_state_dict(model: "NetworkParameters", values: dict[str, Any]) -> None:
    """Checks everything before it changes anything. Running and carried state may be missing, as in pytagi's files."""
    # Copies, as the values may be views of this very network, which would change on the way.
    _put(model, [(place, [array.copy() for array in arrays]) for place, arrays in _checked(model, values)])


def _put(model: "NetworkParameters", checked: list[tuple[Place, list[np.ndarray]]]) -> None:
    model.drop_deltas()
    for place, arrays in checked:
        for array, target in zip(arrays, place(), strict=True):
            model.kernels.array.copy(array, target)


def _checked(model: "NetworkParameters", values: dict) -> list[tuple[Place, list[np.ndarray]]]:
    """(function that gives the network's arrays, their new values) for every entry of a state dict.

    Raises:
        KeyError, ValueError, TypeError: what the network cannot take; names the entry.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"a state dict is a dictionary of arrays by layer, got {type(values).__name__}")
    if strange := [key for key in values if not isinstance(key, str)]:
        raise TypeError(f"the keys of a state dict are texts such as 'Linear.0', got {strange[0]!r:.50}")
    given = {re.sub(r"^(\w+?)Cuda(?=\.)", r"\1", key): value for key, value in values.items()}
    checked: list[tuple[Place, list[np.ndarray]]] = []
    known, missing, misfits = set(), [], []
    for entry, lengths, variances, place in entries(model):
        if entry not in given:
            missing += [] if entry.endswith(SUFFIXES) else [entry]
            continue
        known.add(entry)
        try:
            arrays = _entry(entry, given[entry], lengths, variances)
        except ValueError as error:
            misfits.append(str(error))
        else:
            checked.append((place, list(arrays.values())))
    unknown = sorted(given.keys() - known)
    if missing or unknown:
        parts = {"it lacks": missing, "it has no place for": unknown, "what does not fit": misfits}
        raise KeyError("the state dict is another network's: " + _listing(parts))
    if misfits:
        raise ValueError("; ".join(misfits))
    return checked


def entries(model: "NetworkParameters") -> Iterator[tuple[str, dict[str, int], Sequence[str], Place]]:
    """(key, sizes of its arrays by name, names of those that are variances, what gives the arrays) of all entries."""
    for key, leaf in model.named_leaves():
        if leaf.parameters is not None:
            w, b = leaf.num_weights, leaf.num_biases
            yield key, dict(zip(FIELDS, (w, w, b, b), strict=True)), FIELDS[1::2], partial(_views, model, leaf)
        for kind in KINDS:
            if tensors := [tensor for tensor in leaf.state_tensors() if tensor.kind == kind]:
                lengths = {tensor.name: tensor.size for tensor in tensors}
                variances = [tensor.name for tensor in tensors if tensor.variance]
                yield f"{key}.{kind}", lengths, variances, partial(list, [leaf.state[name] for name in lengths])


def _views(model: "NetworkParameters", leaf: "BaseLayer") -> tuple[Array, ...]:
    model.arena.bring(leaf)
    assert leaf.parameters is not None
    return leaf.parameters.views


def _listing(parts: dict[str, list[str]], most: int = 5) -> str:
    """'<what> a, b, ... and 3 more' for each list that is not empty."""
    found = []
    for what, names in parts.items():
        if names:
            rest = f" and {len(names) - most} more" if len(names) > most else ""
            found.append(f"{what} {', '.join(names[:most])}{rest}")
    return "; ".join(found)


def _entry(
    key: str, value: Sequence[ArrayLike], sizes: dict[str, int], variances: Sequence[str]
) -> dict[str, np.ndarray]:
    """The arrays of one entry by name. An entry may end with empty arrays, which have no name."""
    expected = max(len(FIELDS), len(sizes))
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str):
        raise TypeError(f"{key}: expected {expected} arrays ({', '.join(sizes)}), got {type(value).__name__}")
    if len(value) != expected:
        raise ValueError(f"{key}: expected {expected} arrays ({', '.join(sizes)}), got {len(value)}")
    arrays = {name: flat_float32(a, f"{key} {name}", n) for a, (name, n) in zip(value, sizes.items(), strict=False)}
    for name, array in arrays.items():
        check_finite(array, f"{key} {name}")
        if name in variances:
            check_variances(array, f"{key} {name}")
    for rest in value[len(sizes) :]:
        flat_float32(rest, f"{key}, behind {', '.join(sizes)}", 0)
    return arrays


def to_bytes(
    model: "NetworkParameters",
    extra: dict[str, str] | None = None,
    carried: bool = False,
    beside: Mapping[str, np.ndarray] | None = None,
) -> bytes:
    """The network as one safetensors file in memory. Equal networks give equal bytes.

    Args:
        model: the network.
        extra: further entries of the metadata.
        carried: whether to save what layers carry from call to call.
        beside: further arrays, which do not belong to the network and are skipped when it is loaded.

    Raises:
        ValueError: values that `take` would refuse, such as NaN, or a header of more than `MAX_HEADER` bytes.
    """
    others = {f"{BESIDE}/{name}": array for name, array in (beside or {}).items()}
    return packed(tensors(model, carried) | others, architecture(model), extra)


def tensors(model: "NetworkParameters", carried: bool = False) -> dict[str, np.ndarray]:
    """The arrays of a network that are saved, by name; errors are those of `savable`."""
    names = entry_names(model)
    return {
        f"{key}/{name}": array
        for key, arrays in savable(model, carried).items()
        for name, array in zip(names[key], arrays, strict=False)
        if array.size
    }


def packed(arrays: dict[str, np.ndarray], architecture: str, extra: dict[str, str] | None = None) -> bytes:
    """The file of `to_bytes` for the `tensors` of a network; `extra` holds further metadata."""
    header, values = _split(save_safetensors(arrays))
    return seal({"architecture": architecture, **(extra or {})}, header, values)


def savable(model: "NetworkParameters", carried: bool = False) -> StateDict:
    """The state dict, checked as it will be when it is read again.

    Raises:
        ValueError: values that loading would refuse.
    """
    result = state_dict(model, carried)
    try:
        _checked(model, result)
    except ValueError as error:
        raise ValueError(f"the network is not saved, because it could not be loaded again: {error}") from None
    return result


def seal(meta: dict[str, str], header: dict, values: bytes | memoryview) -> bytes:
    """A file of a header and the values behind it, with their checksum.

    Raises:
        ValueError: a header of more than `MAX_HEADER` bytes.
    """
    # Written here, because the writer of safetensors puts metadata into an order that differs from run to run.
    meta = {"format": FORMAT, "crc32": "0" * 8, **meta}
    text = json.dumps({"__metadata__": meta, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise ValueError(f"a header of {len(text)} bytes is not saved, because at most {MAX_HEADER} are read")
    start = len(text).to_bytes(8, "little") + text
    digits = _checksum(start, values).encode()
    return b"".join((start[: _DIGITS.start], digits, start[_DIGITS.stop :], values))


def _checksum(start: bytes | memoryview, values: bytes | memoryview = b"") -> str:
    """The checksum of a file, given in one part or two; the digits of the checksum itself are left out."""
    before = zlib.crc32(start[_DIGITS.stop :], zlib.crc32(start[: _DIGITS.start]))
    return f"{zlib.crc32(values, before):08x}"


def entry_names(model: "NetworkParameters") -> dict[str, Sequence[str]]:
    """Names of the arrays of every entry that a state dict of the network may have."""
    names: dict[str, Sequence[str]] = {}
    for key, leaf in model.named_leaves():
        names[key] = FIELDS
        for kind in KINDS:
            names[f"{key}.{kind}"] = state_names(leaf, kind)
    return names


def header_size(data: bytes) -> int:
    """Bytes of the header of a safetensors file that begins with `data`.

    Raises:
        ValueError: more than `MAX_HEADER`.
    """
    size = int.from_bytes(data[:8], "little")
    if size > MAX_HEADER:
        raise ValueError(f"its header has {size} bytes, more than {MAX_HEADER}")
    return size


def _split(data: bytes) -> tuple[dict, memoryview]:
    """Header and values of a safetensors file."""
    start = 8 + header_size(data)
    return json.loads(data[8:start]), memoryview(data)[start:]


class Contents(NamedTuple):
    """The parts of a file of `to_bytes`, whose checksum is right; `what` is its name in errors."""

    what: str
    metadata: dict[str, str]
    tensors: dict[str, np.ndarray]


def read(data: bytes, what: str) -> Contents:
    """The parts of a file of `to_bytes`; `what` names the source in errors.

    Raises:
        ValueError: truncated, changed, or no such file.
    """
    if whole := data[8 : _DIGITS.start] == _BEGINNING:
        _compare_checksums(what, data[_DIGITS], _checksum(memoryview(data)))
    try:
        header, values = _split(data)
        tensors = load_safetensors(data)
        meta = header.get("__metadata__") or {}
        if not all(isinstance(value, str) for value in meta.values()):
            raise ValueError("metadata that are no text")
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{what} is truncated or no file of this library: {error}") from error
    if meta.get("format") in (FORMAT_OF_VALUES, FORMAT_OF_SIZES):
        _compare_checksums(what, str(meta.get("crc32")).encode(), f"{zlib.crc32(values):08x}")
    elif meta.get("format") != FORMAT:
        hint = "" if "format" in meta else "; parameters of PyTorch's modules go in by nn.load_torch_state_dict"
        raise ValueError(f"{what} has format {meta.get('format')!r:.50}, this version reads up to {FORMAT!r}{hint}")
    elif not whole:
        raise ValueError(f"{what} is corrupt: its header is not as this library writes it")
    for name, array in tensors.items():
        if array.dtype != np.float32:
            raise ValueError(f"{what}: {name} holds {array.dtype}, not float32")
    return Contents(what, meta, tensors)


def _compare_checksums(what: str, noted: bytes, found: str) -> None:
    if noted != found.encode():
        noted_text = noted.decode(errors="replace")
        raise ValueError(f"{what} is truncated or corrupt: it has checksum {found}, not {noted_text:.50}")


def from_bytes(model: "NetworkParameters", data: bytes, what: str) -> dict[str, str]:
    """Takes the values of `to_bytes` and returns the metadata; `what` names the source in errors."""
    contents = read(data, what)
    take(model, contents)
    return contents.metadata


def take(model: "NetworkParameters", contents: Contents) -> None:
    """Takes the values of a file.

    Raises:
        ValueError: another architecture, or values that no network has. The network is as it was.
    """
    check_architecture(architecture(model), sizes(model), contents.metadata, contents.what)
    _take_values(model, contents.tensors, contents.what)


def _take_values(model: "NetworkParameters", tensors: dict[str, np.ndarray], what: str) -> None:
    """`take`, without comparing the architecture."""
    entries: dict[str, dict[str, np.ndarray]] = {}
    for name, array in tensors.items():
        key, _, field = name.rpartition("/")
        if key != BESIDE:
            entries.setdefault(key, {})[field] = array
    empty, names = np.zeros(0, np.float32), entry_names(model)
    given = {}
    for key, entry in entries.items():
        expected = names.get(key, ())
        unknown = sorted(entry.keys() - set(expected))
        if unknown:
            raise ValueError(f"{what}: the network has no place for {key}/{unknown[0]}")
        padded = [*expected, *[""] * (len(FIELDS) - len(expected))]
        given[key] = tuple(entry.get(name, empty) for name in padded)
    _load_checked(model, given, what)


def take_part(part: "NetworkParameters", contents: Contents, architecture: str, sizes: str) -> None:
    """`take` for `part`, some layers of a network; `architecture` and `sizes` are those of the whole network."""
    what, meta, arrays = contents
    check_architecture(architecture, sizes, meta, what)
    keys = dict(part.named_leaves()).keys()
    mine = {
        name: a for name, a in arrays.items() if re.sub(r"\.(running|carried)$", "", name.rpartition("/")[0]) in keys
    }
    _take_values(part, mine, what)


def check_architecture(architecture: str, sizes: str, meta: Mapping[str, str], what: str) -> None:
    """Raises ValueError naming the first layer, and its setting, in which a file differs from the network.

    Args:
        architecture, sizes: results of the functions of these names for the network.
        meta: the metadata of the file. what: its name.
    """
    if meta.get("format") == FORMAT_OF_SIZES:
        difference = first_other_size(sizes, meta.get("architecture", ""))
    else:
        try:
            difference = first_difference(architecture, meta.get("architecture", "{}"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{what} is corrupt: its architecture cannot be read: {error}") from error
    if difference:
        setting, ours, theirs = difference
        raise ValueError(f"{what} has another architecture: {setting} is {theirs!s:.200} there and {ours} here")


def _load_checked(model: "NetworkParameters", values: dict, what: str) -> None:
    """`load_state_dict` of what a file held; errors name the file."""
    try:
        _put(model, _checked(model, values))
    except (KeyError, ValueError) as error:
        raise ValueError(f"{what}: {error.args[0]}") from error


def save(model: "NetworkParameters", filename: str | Path, carried: bool = False) -> None:
    atomic_write(filename, to_bytes(model, carried=carried))


def save_pytagi(model: "NetworkParameters", filename: str | Path) -> None:
    savable(model)
    atomic_write(filename, pytagi_format.format_bytes(model))


def load(model: "NetworkParameters", filename: str | Path) -> None:
    data = read_file(filename)
    if data[8:9] == b"{":
        from_bytes(model, data, str(filename))
    else:
        _load_checked(model, pytagi_format.parse(model, data, str(filename)), str(filename))


def save_csv(model: "NetworkParameters", prefix: str | Path) -> None:
    savable(model)
    columns = zip(*model.parameters(), strict=True)
    for suffix, arrays in zip(CSV_SUFFIXES, columns, strict=True):
        text = "".join(f"{value:.9g}\n" for value in np.concatenate(arrays))
        atomic_write(f"{prefix}{suffix}", text.encode())


def load_csv(model: "NetworkParameters", prefix: str | Path) -> None:
    leaves = [(key, leaf) for key, leaf in model.named_leaves() if leaf.parameters is not None]
    columns = []
    for suffix, field in zip(CSV_SUFFIXES, FIELDS, strict=True):
        sizes = [getattr(leaf, field).size for _, leaf in leaves]
        values = _numbers(Path(f"{prefix}{suffix}"), sum(sizes))
        columns.append(np.split(values, np.cumsum(sizes)[:-1]))
    _load_checked(model, {key: arrays for (key, _), *arrays in zip(leaves, *columns, strict=True)}, str(prefix))


def _numbers(path: Path, count: int) -> np.ndarray:
    """The `count` numbers in a text file, read without taking more memory than they need.

    Raises:
        ValueError: not so many, or something else.
    """
    file_size(path)  # raises an OSError that names the file, also for a pipe, which would be waited for
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # what NumPy does for now with text that is no number
            values = np.fromfile(path, np.float32, count + 1, sep=" ")
    except (ValueError, DeprecationWarning) as error:
        raise ValueError(f"{path} is no file of numbers: {error}") from None
    if values.size != count:
        found = "more" if values.size > count else values.size
        raise ValueError(f"{path} holds {found} values, the network has {count}")
    return values
