"""Networks in files: of this library (`file_format`), and of pytagi (`pytagi_format`)."""

from collections.abc import Mapping

import numpy as np

from pytagi_ddp.files import AnyPath, as_path, read_file
from pytagi_ddp.nn.core.network import Network
from pytagi_ddp.nn.files import pytagi_format
from pytagi_ddp.nn.files.architecture import architecture, first_difference, first_other_size, sizes
from pytagi_ddp.nn.files.file_format import FORMAT_OF_SIZES, Contents, packed, read
from pytagi_ddp.nn.files.state_dicts import StateDict as StateDict  # also for pickles of earlier versions
from pytagi_ddp.nn.files.state_dicts import Values, by_entry, check_file, savable

BESIDE = "beside"  # prefix of arrays in a file that do not belong to the network


def to_bytes(
    model: Network,
    extra: dict[str, str] | None = None,
    carried: bool = False,
    beside: Mapping[str, np.ndarray] | None = None,
) -> bytes:
    """The network as a file of this library. Equal networks give equal bytes.

    Args:
        extra: further entries of the metadata.
        carried: whether to save the states that layers carry from call to call.
        beside: further arrays, which do not belong to the network and are skipped when it is loaded.

    Raises:
        ValueError: values that could not be loaded again, such as NaN, or a header of more than `MAX_HEADER` bytes.
    """
    others = {f"{BESIDE}/{name}": array for name, array in (beside or {}).items()}
    return packed(tensors(model, carried) | others, {"architecture": architecture(model), **(extra or {})})


def tensors(model: Network, carried: bool = False) -> dict[str, np.ndarray]:
    """The arrays of a network that are saved, by name; errors are those of `savable`."""
    return {spec.name: array for spec, array in savable(model, carried) if array.size}


def check(model: Network, contents: Contents) -> Values:
    """The values of a file, for `state_dicts.put`; changes nothing.

    Raises:
        ValueError: another architecture, or values that a network cannot have.
    """
    check_architecture(architecture(model), sizes(model), contents.metadata, contents.what)
    return check_tensors(model, contents.tensors, contents.what)


def check_tensors(model: Network, tensors: Mapping[str, np.ndarray], what: str) -> Values:
    """`check` of the tensors of the file `what`, without comparing the architecture."""
    rest = {name: array for name, array in tensors.items() if name.rpartition("/")[0] != BESIDE}
    there = {name.rpartition("/")[0] for name in rest}
    empty = np.zeros(0, np.float32)
    found = [(spec, rest.pop(spec.name, empty)) for spec in model.arena.tensors if spec.entry in there]
    if rest:
        raise ValueError(f"{what}: the network has no place for {min(rest)}")
    return check_file(model, by_entry(found), what)


def check_architecture(architecture: str, sizes: str, meta: Mapping[str, str], what: str) -> None:
    """Raises ValueError if the architecture in the metadata of the file `what` differs; names the first difference.

    `architecture` and `sizes` are results of the functions of these names for the network.
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


def check_path(model: Network, filename: AnyPath) -> Values:
    """`check` of a file of this library, or of pytagi's `save`."""
    data, what = read_file(filename), str(as_path(filename))
    if data[8:9] == b"{":
        return check(model, read(data, what))
    return check_file(model, pytagi_format.parse(model, data, what), what)
