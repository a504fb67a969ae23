"""Names by which other libraries call what networks and layers have here under another name, or do not need."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

_MOVE = "call to_device('cuda') or to_device('cpu')"
_MOVE_NETWORK = f"a layer moves with its network: {_MOVE} of the network"
_FLOAT32 = "parameters are float32; `precision` of a network may be 'mixed'"
_FIXED = "the layers of a network are fixed: make a new one, Sequential([*copy.deepcopy(net.layers), ...])"
_NO_GRADIENTS = "there are no gradients: backward() begins anew after each step()"
_LOOP = (
    "a training step is forward, OutputUpdater.update, backward, step; fit and predict on tables are those of "
    "pytagi_ddp.estimators.TAGIRegressor and TAGIClassifier"
)
_WALK = "layers give the layers, named_layers() those in blocks too, with their keys"
_BY_KEY = "state_dict() has the parameters by layer, parameters() without names"
_WEIGHTS = "means and variances are mu_w, var_w, mu_b, var_b"

NETWORK = {
    **dict.fromkeys(("to", "cuda", "cpu"), _MOVE),
    **dict.fromkeys(("half", "double", "float", "bfloat16"), _FLOAT32),
    **dict.fromkeys(("append", "extend", "insert", "add", "pop", "add_module"), _FIXED),
    **dict.fromkeys(("zero_grad", "requires_grad_"), _NO_GRADIENTS),
    **dict.fromkeys(("fit", "compile", "evaluate", "score", "predict_proba", "partial_fit"), _LOOP),
    **dict.fromkeys(("children", "named_children", "modules", "named_modules"), _WALK),
    **dict.fromkeys(("named_parameters", "get_weights", "set_weights"), f"{_BY_KEY}; load_state_dict() sets"),
    **dict.fromkeys(("buffers", "named_buffers"), "state_dict() has the running statistics, too"),
    **dict.fromkeys(("weight", "weights"), f"{_WEIGHTS} of a layer, such as net[0].mu_w"),
    **dict.fromkeys(("register_forward_hook", "register_full_backward_hook"), "call add_hook()"),
    **dict.fromkeys(("in_features", "input_size"), "in_shape.size is the size of its input"),
    **dict.fromkeys(("out_features", "output_size"), "out_shape.size is the size of its output"),
    **dict.fromkeys(("save_weights", "load_weights"), "files are those of save() and load()"),
}
LAYER = {
    **dict.fromkeys(("to", "cpu", "cuda"), _MOVE_NETWORK),
    **dict.fromkeys(("half", "double", "float", "bfloat16"), _FLOAT32),
    **dict.fromkeys(("weight", "weights", "get_weights", "set_weights"), _WEIGHTS),
    **dict.fromkeys(("state_dict", "load_state_dict", "named_parameters"), "the network has it, for all of its layers"),
    **dict.fromkeys(("train", "eval"), "assign `training`, or call train() or eval() of the network for all layers"),
    **dict.fromkeys(("in_features",), "it is called input_size"),
    **dict.fromkeys(("buffer_bytes",), "call buffer_bytes(layer) of the network"),
    **dict.fromkeys(("out_features",), "it is called output_size"),
    **dict.fromkeys(
        ("children", "modules", "named_modules"),
        "a block has `layers`; all layers with their keys are in named_layers() of the network",
    ),
}


class OtherNames:
    """Answers an attribute that is not there, and that another library has, by what to do instead."""

    _other_names: Mapping[str, str] = MappingProxyType({})  # what to do instead, by name

    if not TYPE_CHECKING:  # or every name would pass as an attribute

        def __getattr__(self, name: str) -> Any:
            remedy = self._other_names.get(name)
            if remedy is None:
                return object.__getattribute__(self, name)  # the same error once more, that of a property too
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}: {remedy}")
