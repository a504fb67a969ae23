"""The order in which the pages of networks show their members: those for daily use come first."""

import inspect

from pytagi_ddp.distributed import DataParallel, DDPSequential, FSDPSequential, PipelineSequential
from pytagi_ddp.nn import Sequential

GROUPS = {
    "Training and predicting": (
        *("forward", "backward", "step", "predict", "fit", "train", "eval", "training", "forget_evidence", "update_bn"),
        *("accumulate", "no_sync", "join", "forward_backward"),
    ),
    "Calls of all ranks": (
        *("synchronize", "merge", "steps_since_merge", "barrier", "request_stop", "withdraw_stop", "unshard", "close"),
    ),
    "Files": ("save", "load", "save_pytagi", "save_csv", "load_csv"),
    "Layers and parameters": (
        *("summary", "named_layers", "named_leaves", "num_parameters", "parameters", "state_dict", "load_state_dict"),
        *("sample", "params_from", "parameters_changed", "drop_deltas"),
    ),
    "Inspection and profiles": (
        *(
            "inspect",
            "profile",
            "timelines",
            "get_norm_mean_var",
            "get_neg_var_w_counter",
            "get_layer_stack_info",
        ),
    ),
    "Outputs and deltas": ("get_outputs", "set_delta_z", "get_input_states"),
    "Memory of recurrent layers": (
        *("get_lstm_states", "set_lstm_states", "reset_lstm_states", "smoother", "get_outputs_smoother"),
    ),
    "Device and threads": ("to_device", "get_device_with_index", "set_threads"),
    "For wrappers of networks": (
        *("add_hook", "materialize", "deltas_dropped", "slices", "take", "to_bytes", "to_host", "title"),
    ),
    "For programs written for pytagi": (
        *("preinit_layer", "params_to_device", "params_to_host", "output_to_host", "delta_z_to_host"),
        *("z_buffer_size", "z_buffer_block_size"),
    ),
}
NETWORKS = (Sequential, DDPSequential, FSDPSequential, PipelineSequential, DataParallel)


def members(owner: type) -> dict[str, str]:
    """The public members that have a docstring, with the directives that show them. Others are shown with the class."""
    found = {}
    for name in dir(owner):
        if name.startswith("_") or not hasattr(owner, name):
            continue
        thing = inspect.getattr_static(owner, name)
        if (inspect.isroutine(thing) or isinstance(thing, property)) and thing.__doc__:
            found[name] = "autoproperty" if isinstance(thing, property) else "automethod"
    return found


def groups_of(owner: type) -> dict[str, list[tuple[str, str]]]:
    """(directive, member) by group, for a page; groups of which the class has nothing are left out.

    Raises:
        ValueError: a member is in no group, or in two.
    """
    own, named = members(owner), [name for names in GROUPS.values() for name in names]
    if wrong := [name for name in own if named.count(name) != 1]:
        raise ValueError(f"each member of {owner.__name__} has to be in one group of docs/groups.py: {wrong}")
    groups = {title: [(own[name], name) for name in names if name in own] for title, names in GROUPS.items()}
    return {title: entries for title, entries in groups.items() if entries}
