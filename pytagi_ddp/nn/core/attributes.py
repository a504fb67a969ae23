"""Errors for attributes that layers, networks and their wrappers do not have.

The library would not read such an attribute, so assigning it raises an error. For names of PyTorch, Keras and
scikit-learn, the message says what to do here instead.
"""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, NoReturn

CLOSE = 0.7  # similarity of names that are suggested; "sample" is not what "name" means
PACKAGE = __name__.partition(".")[0]
FREEZE = "layer.freeze() and layer.unfreeze() decide whether steps change the parameters of a layer"
NO_RATE = (
    "TAGI has none: the size of a step follows from the variances of the parameters (gain_weight, gain_bias) and of "
    "the observations"
)
MISTAKEN = {  # names of other libraries -> what to do here instead
    **dict.fromkeys(("requires_grad", "requires_grad_", "trainable"), FREEZE),
    **dict.fromkeys(("learning_rate", "lr"), NO_RATE),
}

_MOVE = "call to_device('cuda') or to_device('cpu')"
_MOVE_NETWORK = f"a layer moves with its network: {_MOVE} of the network"
_FLOAT32 = "parameters are float32; `precision` of a network may be 'mixed'"
_FIXED = "the layers of a network are fixed: make a new one, Sequential([*copy.deepcopy(net.layers), ...])"
_NO_GRADIENTS = "there are no gradients: backward() begins anew after each step()"
_LOOP = (
    "fit trains it; pytagi_ddp.training.Trainer evaluates too, and pytagi_ddp.estimators.TAGIRegressor and "
    "TAGIClassifier have scikit-learn's methods"
)
_WALK = "layers give the layers, named_layers() those in blocks too, with their keys"
_BY_KEY = "state_dict() has the parameters by layer, parameters() without names"
_WEIGHTS = "means and variances are mu_w, var_w, mu_b, var_b"

NETWORK = {
    **dict.fromkeys(("to", "cuda", "cpu"), _MOVE),
    **dict.fromkeys(("half", "double", "float", "bfloat16"), _FLOAT32),
    **dict.fromkeys(("append", "extend", "insert", "add", "pop", "add_module"), _FIXED),
    "zero_grad": _NO_GRADIENTS,
    **dict.fromkeys(("compile", "evaluate", "score", "predict_proba", "partial_fit"), _LOOP),
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
    "in_features": "it is called input_size",
    "out_features": "it is called output_size",
    "buffer_bytes": "call passes.buffer_bytes(layer) of the network",
    **dict.fromkeys(
        ("children", "modules", "named_modules"),
        "a block has `layers`; all layers with their keys are in named_layers() of the network",
    ),
}
_NO_LOSS = "there are no losses: likelihoods are in pytagi_ddp.likelihoods"
_OWN = "there is none: write it in NumPy, as docs/guide/own_layers.md shows"
TORCH = {  # modules of PyTorch -> what to do here instead
    **dict.fromkeys(("Flatten", "Unflatten"), "it is not needed: a Linear takes a whole image or sequence"),
    **dict.fromkeys(("Dropout", "Dropout1d", "Dropout2d"), "leave it out: variances are the uncertainty"),
    **dict.fromkeys(("Module", "ModuleList"), "derive from BaseLayer or Activation; blocks are LayerBlock"),
    **dict.fromkeys(("GRU", "RNN"), "use LSTM"),
    **dict.fromkeys(("Transformer", "TransformerEncoder", "TransformerDecoder"), "use pytagi_ddp.models.transformer"),
    "BatchNorm1d": "use BatchNorm2d",
    "Conv1d": "use Conv2d with in_height=1, see docs/coming_from.md",
    **dict.fromkeys(("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"), "use ConvTranspose2d"),
    **dict.fromkeys(("CrossEntropyLoss", "NLLLoss"), f"{_NO_LOSS}, such as Categorical(n)"),
    **dict.fromkeys(("MSELoss", "GaussianNLLLoss"), f"{_NO_LOSS}, such as Gaussian(sigma)"),
    **dict.fromkeys(("BCELoss", "BCEWithLogitsLoss"), f"{_NO_LOSS}, such as Bernoulli()"),
    **dict.fromkeys(("GELU", "SiLU", "Mish", "Hardswish", "PReLU", "GroupNorm", "InstanceNorm2d", "Conv3d"), _OWN),
}


def _by_the_package() -> bool:
    """Whether the code that makes the assignment belongs to this package."""
    frame = sys._getframe(2)
    while frame.f_code.co_name == "__setattr__" and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE


def _is_pytagi() -> bool:
    """Whether this package is imported by the name of pytagi, whose programs keep values of their own in networks."""
    return getattr(sys.modules.get("pytagi"), "__name__", "") == PACKAGE


def is_ours(thing: Any) -> bool:
    """Whether a class or function is one of this library's."""
    return thing.__module__.partition(".")[0] == PACKAGE


class Elsewhere:
    """An attribute of another library: reading it raises AttributeError with what to do instead.

    It is a descriptor, because Python reads every attribute of a class with a `__getattr__` slower.
    """

    def __init__(self, name: str, remedy: str):
        self._name, self._remedy = name, remedy

    def __repr__(self) -> str:  # for `help`
        return f"not here: {self._remedy}"

    def __get__(self, thing: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}: {self._remedy}")


class KnownAttributes:
    """Base of layers, networks and their wrappers: raises helpful errors for public attributes that do not exist.

    Reading an attribute of another library raises an error that says what to do instead; assigning an unknown one
    raises an error. Classes outside this package, and programs of pytagi (`import pytagi_ddp.as_pytagi`), may set
    attributes of their own at any time, except for those in `MISTAKEN`.

    Args (of a subclass):
        other_names: what to do instead, by the name in another library.
    """

    def __init_subclass__(cls, other_names: Mapping[str, str] | None = None, **more: Any):
        super().__init_subclass__(**more)
        for name, remedy in ({} if other_names is None else {**other_names, **MISTAKEN}).items():
            setattr(cls, name, Elsewhere(name, remedy))

    def __dir__(self) -> list[str]:
        kind = type(self)
        return [name for name in super().__dir__() if not isinstance(getattr_static(kind, name, None), Elsewhere)]

    if not TYPE_CHECKING:  # otherwise mypy would accept assignments to unknown attributes

        def __setattr__(self, name: str, value: Any) -> None:
            # Not self.__dict__: Python reads the attributes of an object faster before the first access to it.
            if name[:1] != "_" and not hasattr(type(self), name) and not hasattr(self, name):
                free = (not is_ours(type(self)) or _is_pytagi()) and name not in MISTAKEN
                if not free and not _by_the_package():
                    raise AttributeError(self._unknown(name), name=name, obj=self)
            super().__setattr__(name, value)

    def _unknown(self, name: str) -> str:
        """The message for an assignment to `name`, which is not an attribute."""
        if name in MISTAKEN:
            return f"{type(self).__name__} has no attribute {name!r}: {MISTAKEN[name]}"
        near = get_close_matches(name, [known for known in dir(self) if not known.startswith("_")], 3, CLOSE)
        hint = f": did you mean {' or '.join(near)}?" if near else "."
        text = f"{type(self).__name__} has no attribute {name!r}, and the library would not read it"
        return f"{text}{hint} (An attribute of your own begins with _, or is one of a subclass.)"
