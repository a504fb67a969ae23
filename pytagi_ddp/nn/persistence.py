"""Parameters of a network as dictionaries and files."""

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from pytagi_ddp.files import atomic_write
from pytagi_ddp.nn import pytagi_format
from pytagi_ddp.nn.architecture import architecture, first_difference, first_other_size, sizes
from pytagi_ddp.nn.state import Array
from pytagi_ddp.nn.validate import check_finite, check_variances, flat_float32

if TYPE_CHECKING:
    from pytagi_ddp.nn.layer import BaseLayer
    from pytagi_ddp.nn.network_parameters import NetworkParameters

FIELDS = ("mu_w", "var_w", "mu_b", "var_b")
KINDS = ("running", "carried")  # suffixes of the entries of what a layer keeps and does not learn
FORMAT = "pytagi_ddp 2"
FORMAT_OF_SIZES = "pytagi_ddp 1"  # whose architecture has sizes, and no settings
CSV_SUFFIXES = ("_1_mw.csv", "_2_Sw.csv", "_3_mb.csv", "_4_Sb.csv")


class StateDict(dict):
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
            result[key] = tuple(host(getattr(leaf, field)) for field in FIELDS)
        for kind in KINDS if carried else KINDS[:1]:
            if names := state_names(leaf, kind):
                empty = [np.zeros(0, np.float32)] * (len(FIELDS) - len(names))
                result[f"{key}.{kind}"] = (*(host(leaf.state[name]) for name in names), *empty)
    return result


def load_state_dict(model: "NetworkParameters", values: dict) -> None:
    """Checks everything before it changes anything; entries of what is not learned may be missing (pytagi)."""
    given = {re.sub(r"^(\w+?)Cuda(?=\.)", r"\1", key): value for key, value in values.items()}
    checked: list[tuple] = []
    known, missing, misfits = set(), [], []
    for entry, targets, variances, learned in _entries(model):
        if entry not in given:
            missing += [entry] if learned else []
            continue
        known.add(entry)
        try:
            arrays = _entry(entry, given[entry], {name: a.size for name, a in targets.items()}, variances)
        except (TypeError, ValueError) as error:
            misfits.append(str(error))
        else:
            checked += [(target, arrays[name]) for name, target in targets.items()]
    unknown = sorted(given.keys() - known)
    if missing or unknown:
        parts = {"it lacks": missing, "it has no place for": unknown, "what does not fit": misfits}
        raise KeyError("the state dict is another network's: " + _listing(parts))
    if misfits:
        raise ValueError("; ".join(misfits))
    for target, array in checked:
        model.kernels.array.copy(array, target)


def _entries(model: "NetworkParameters") -> Iterator[tuple[str, dict[str, Array], Sequence[str], bool]]:
    """(key, where its arrays go by name, which of them are variances, whether it is learned) of all entries."""
    for key, leaf in model.named_leaves():
        if leaf.parameters is not None:
            yield key, dict(zip(FIELDS, leaf.parameters.views, strict=True)), FIELDS[1::2], True
        for kind in KINDS:
            if tensors := [tensor for tensor in leaf.state_tensors() if tensor.kind == kind]:
                targets = {tensor.name: leaf.state[tensor.name] for tensor in tensors}
                yield f"{key}.{kind}", targets, [tensor.name for tensor in tensors if tensor.variance], False


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
    """The arrays of one entry by name; behind those with a name, empty ones may stand."""
    expected = max(len(FIELDS), len(sizes))
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


def to_bytes(model: "NetworkParameters", extra: dict[str, str] | None = None, carried: bool = False) -> bytes:
    """The network as one safetensors file in memory; `extra` joins its metadata. Equal networks give equal bytes."""
    tensors = {}
    names = entry_names(model)
    for key, arrays in state_dict(model, carried).items():
        tensors.update({f"{key}/{name}": a for name, a in zip(names[key], arrays, strict=False) if a.size})
    header, values = _split(save_safetensors(tensors))
    # Put in here, because the writer gives metadata in the order of a hash that differs from run to run.
    meta = {"format": FORMAT, "architecture": architecture(model), "crc32": _checksum(values), **(extra or {})}
    text = json.dumps({"__metadata__": meta, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, values))


def entry_names(model: "NetworkParameters") -> dict[str, Sequence[str]]:
    """Names of the arrays of every entry that a state dict of the network may have."""
    names: dict[str, Sequence[str]] = {}
    for key, leaf in model.named_leaves():
        names[key] = FIELDS
        for kind in KINDS:
            names[f"{key}.{kind}"] = state_names(leaf, kind)
    return names


def _split(data: bytes) -> tuple[dict, memoryview]:
    """Header and values of a safetensors file."""
    start = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:start]), memoryview(data)[start:]


def _checksum(values: memoryview) -> str:
    return f"{zlib.crc32(values):08x}"


class Contents(NamedTuple):
    """A file of `to_bytes` in parts. what: its name in errors; checksum: that of the values it holds."""

    what: str
    metadata: dict[str, str]
    tensors: dict[str, np.ndarray]
    checksum: str


def read(data: bytes, what: str) -> Contents:
    """The parts of a file of `to_bytes`; `what` names the source in errors.

    Raises:
        ValueError: truncated, or no such file.
    """
    try:
        tensors = load_safetensors(data)
        header, values = _split(data)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{what} is truncated or no file of this library: {error}") from error
    return Contents(what, header.get("__metadata__", {}), tensors, _checksum(values))


def from_bytes(model: "NetworkParameters", data: bytes, what: str) -> dict[str, str]:
    """Takes the values of `to_bytes` and returns the metadata; `what` names the source in errors."""
    contents = read(data, what)
    take(model, contents)
    return contents.metadata


def take(model: "NetworkParameters", contents: Contents) -> None:
    """Takes the values of a file.

    Raises:
        ValueError: another architecture, or a corrupt file. The network is as it was.
    """
    what, meta, tensors, checksum = contents
    _check_architecture(model, meta, what)
    if meta.get("crc32") != checksum:
        raise ValueError(f"{what} is corrupt: its values have checksum {checksum}, not {meta.get('crc32')}")
    entries: dict[str, dict[str, np.ndarray]] = {}
    for name, array in tensors.items():
        if array.dtype != np.float32:
            raise ValueError(f"{what}: {name} holds {array.dtype}, not float32")
        key, _, field = name.rpartition("/")
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


def _check_architecture(model: "NetworkParameters", meta: dict[str, str], what: str) -> None:
    """Raises ValueError naming the first layer, and its setting, in which a file differs from the network."""
    if meta.get("format") == FORMAT:
        try:
            difference = first_difference(architecture(model), meta.get("architecture", "{}"))
        except ValueError as error:
            raise ValueError(f"{what} is corrupt: its architecture cannot be read: {error}") from error
    elif meta.get("format") == FORMAT_OF_SIZES:
        difference = first_other_size(sizes(model), meta.get("architecture", ""))
    else:
        raise ValueError(f"{what} has format {meta.get('format')!r}, this version reads up to {FORMAT!r}")
    if difference:
        setting, ours, theirs = difference
        raise ValueError(f"{what} has another architecture: {setting} is {theirs} there and {ours} here")


def _load_checked(model: "NetworkParameters", values: dict, what: str) -> None:
    """`load_state_dict` of what a file held; errors name the file."""
    try:
        load_state_dict(model, values)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{what}: {error.args[0]}") from error


def save(model: "NetworkParameters", filename: str | Path, carried: bool = False) -> None:
    atomic_write(filename, to_bytes(model, carried=carried))


def load(model: "NetworkParameters", filename: str | Path) -> None:
    data = Path(filename).read_bytes()
    if data[8:9] == b"{":
        from_bytes(model, data, str(filename))
    else:
        _load_checked(model, pytagi_format.parse(model, data, str(filename)), str(filename))


def save_csv(model: "NetworkParameters", prefix: str | Path) -> None:
    columns = zip(*model.parameters(), strict=True)
    for suffix, arrays in zip(CSV_SUFFIXES, columns, strict=True):
        text = "".join(f"{value:.9g}\n" for value in np.concatenate(arrays))
        atomic_write(f"{prefix}{suffix}", text.encode())


def load_csv(model: "NetworkParameters", prefix: str | Path) -> None:
    leaves = [(key, leaf) for key, leaf in model.named_leaves() if leaf.parameters is not None]
    columns = []
    for suffix, field in zip(CSV_SUFFIXES, FIELDS, strict=True):
        path = Path(f"{prefix}{suffix}")
        try:
            values = np.array(path.read_text().split(), np.float32)
        except ValueError as error:
            raise ValueError(f"{path} is no file of numbers: {error}") from error
        sizes = [getattr(leaf, field).size for _, leaf in leaves]
        if values.size != sum(sizes):
            raise ValueError(f"{path} holds {values.size} values, the network has {sum(sizes)}")
        columns.append(np.split(values, np.cumsum(sizes)[:-1]))
    _load_checked(model, {key: arrays for (key, _), *arrays in zip(leaves, *columns, strict=True)}, str(prefix))
