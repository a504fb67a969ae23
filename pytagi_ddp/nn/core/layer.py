"""The contract of a layer.

A layer goes through three stages: *constructed* (hyper-parameters; priors drawn where the size is known), *built*
(`build`: the size of its input is known) and *attached* (parameters live in the network's arena, kernels are picked).
Then `forward` maps a State to a State and `backward` a Delta to a Delta; what one leaves for the other is in a `Saved`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import numpy as np

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.nn.core.attributes import LAYER, KnownAttributes
from pytagi_ddp.nn.core.deferred import DeferredParameters, is_deferring
from pytagi_ddp.nn.core.owner import Owner
from pytagi_ddp.nn.core.parameters import Parameters, ParameterValues
from pytagi_ddp.nn.core.pytagi_view import LayerView, refuse_assignment
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.state import UNKNOWN, Array, Delta, Shape, State
from pytagi_ddp.nn.core.step import Change
from pytagi_ddp.nn.core.tensors import TensorSpec
from pytagi_ddp.nn.core.unpickled import writable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


# What a layer promises of its passes, so that the library may leave something out. By default nothing is promised.
PROMISES = ("replayable", "needs_variances", "spares_deltas")
# What a class may override and still compute in the same way; names that begin with two underscores are of these, too.
DESCRIPTIONS = {"name", "settings", "get_layer_name", "get_layer_info", "init_weight_bias", "_abc_impl"}

# Attributes in which layers of earlier versions kept passes, and which their pickles hold.
OF_PASSES = {
    *("_angles", "_buffers", "_ends", "_input", "_kept", "_left", "_memory", "_norm", "_pool", "_reader", "_trained"),
    *("_way_back", "_winner", "made", "on_moments", "pool_at_step", "recomputing", "reduce_sums", "sums"),
}


def _is_ours(kind: type) -> bool:
    """Whether a class is one of this library's."""
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


class BaseLayer(KnownAttributes, LayerView, ABC, other_names=LAYER):
    """Base of all layers: sizes, parameters and buffers.

    Attributes:
        input_size, output_size: units per sample (0 before the layer is part of a network, where unknown).
        in_channels, in_height, in_width, out_channels, out_height, out_width: image geometry, 0 for flat units.
        training: whether statistics are taken from the batch. `train` and `eval` of a network set it for all of its
            layers; setting it on a block sets it for every layer inside. A BatchNorm2d with False in a network in
            training is frozen: it normalises by its running statistics, which do not change. (Its gamma and beta
            still learn, unless `freeze` is called, too.) A copy of a layer keeps the value: call `train` on a network
            that is built from copies.
        frozen: whether steps do not change the parameters, see `freeze`; for a block: all parameters in it.
        bias: whether the layer has biases.
        mu_w, var_w, mu_b, var_b: means and variances of weights and biases: flat float32 views of the parameters (from
            a GPU read-only copies), assignable. After an assignment a backward pass needs a new forward pass. The
            network does not notice when values are written into such a view: call its `parameters_changed` then.
        delta_mu_w, ...: the deltas of the last backward pass, s * sum A dm and s^2 * sum A^2 ds, with the present
            variances s: a `step` applies them, and changes them.
        kernels: those of the network's device.
    """

    name = "BaseLayer"
    bias = False
    replayable = False  # True: its passes call kernels and do nothing else, and may be replayed without their Python
    gives_jacobian = False  # whether its output states hold a Jacobian
    needs_variances = True  # whether `backward` reads the variances of the layer's input
    spares_deltas = False  # whether `backward` leaves the numbers in `delta` alone, or asks `DeltaPool.own` for others
    _is_leaf = True  # a layer that computes; False: a block of layers, or a change of order between them
    _training = True
    _frozen = False
    kernels: Kernels

    def __init_subclass__(cls, **options: Any) -> None:
        """Names a class of this library; takes the inherited `PROMISES` from another one that computes in another way.

        It computes in another way if it, or a class outside this library that it is made of, overrides more than
        `DESCRIPTIONS`. A promise that the body of the class itself makes counts.
        """
        super().__init_subclass__(**options)
        if _is_ours(cls):
            cls.name = vars(cls).get("name", cls.__name__)
        ours = [base for base in cls.__mro__ if _is_ours(base)]
        known = set().union(*map(vars, ours)) - DESCRIPTIONS
        overridden = {name for base in cls.__mro__ if base not in ours for name in vars(base) if name in known}
        if any(not name.startswith("__") for name in overridden):
            for name in set(PROMISES) - vars(cls).keys():
                setattr(cls, name, vars(BaseLayer)[name])

    mu_w, var_w = ParameterValues("w", "mu"), ParameterValues("w", "var")
    mu_b, var_b = ParameterValues("b", "mu"), ParameterValues("b", "var")
    delta_mu_w, delta_var_w = ParameterValues("w", "mu", deltas=True), ParameterValues("w", "var", deltas=True)
    delta_mu_b, delta_var_b = ParameterValues("b", "mu", deltas=True), ParameterValues("b", "var", deltas=True)

    def __init__(self) -> None:
        self.in_shape = self.out_shape = UNKNOWN
        self.parameters: Parameters | None = None
        self._network: ref[Owner] | None = None  # weak, so that a network's memory is free when it is dropped
        # State that is not learned, see `state_tensors`.
        self.state: dict[str, Array] = {}
        self._saved_state: dict[str, np.ndarray] | None = None  # on the way to another device, or in a copy

    @property
    def training(self) -> bool:
        return self._training

    @training.setter
    def training(self, value: bool) -> None:
        with self._alone:
            for _, layer in self.named_layers(""):
                layer._training = bool(value)
            if self._owner is not None:
                self._owner.passes.invalidate(Change.MODES)

    def freeze(self) -> None:
        """From now on, no step changes the parameters of the layer; of a block: those of all layers in it.

            for layer in net.layers[:-1]:  # fine-tuning: only the last layer learns
                layer.freeze()

        Means and variances do not change, also in `forget_evidence`. Predictions still use both, and deltas still
        flow through the layer to earlier ones. Assignments, `load` and `load_state_dict` change the values.

        BatchNorm2d: gamma and beta are frozen. The running statistics are not learnt; `training = False` freezes those.

        Copies and pickles keep the setting. Files, checkpoints and state dicts do not store it: a program that resumes
        a run freezes the same layers again, before or after it loads. On many ranks, freeze the same layers on every
        rank; the constructors of `DDPSequential` and the other wrappers compare them. A frozen layer saves no time.
        """
        self._set_frozen(True)

    def unfreeze(self) -> None:
        """Undoes `freeze`: steps change the parameters again, from the variances that they have."""
        self._set_frozen(False)

    def _set_frozen(self, value: bool) -> None:
        with self._alone:
            for leaf in self.leaves():
                leaf._frozen = value
            if self._owner is not None:
                self._owner.passes.invalidate(Change.FROZEN)

    @property
    def frozen(self) -> bool:
        learned = [leaf._frozen for leaf in self.leaves() if leaf.parameters is not None]
        return bool(learned) and all(learned)

    # -- stages -----------------------------------------------------------------------------------------------

    def default_input_shape(self) -> Shape | None:
        """The input shape that the layer needs as the first of a network; None if it does not determine one."""
        return None

    def features_by_step(self, features: int) -> int | None:
        """Features of the output for `features` of the input, if the layer takes each time step alone; else None."""
        return None

    def input_shape(self, shape: Shape) -> Shape:
        """How the layer reads an output of `shape`, perhaps as an image, or in another order of memory.

        Raises:
            ValueError: an input of this shape does not fit the layer.
        """
        return shape

    def build(self, shape: Shape) -> Shape:
        """Takes the shape of the input, one of `input_shape`; returns that of the output."""
        self.in_shape = shape
        self.out_shape = self._infer_output(shape)
        return self.out_shape

    def _infer_output(self, shape: Shape) -> Shape:
        return shape

    @property
    def steps(self) -> int:
        """Time steps at which the parameters are used; each counts as a sample for the cap of their change."""
        return 1

    def init_weight_bias(self) -> None:
        """Draws the prior again, in layers with parameters."""

    def set_prior(self, mu_w: ArrayLike, var_w: ArrayLike, mu_b: ArrayLike = (), var_b: ArrayLike = ()) -> None:
        """Takes means and variances of weights and biases as the prior; for `init_weight_bias` of a layer of your own.

        The parameters are `parameters.w`, of the shape of `mu_w`, and `parameters.b`, flat (None without biases). Of
        each, `mu` and `var` are its moments, and `backward` writes g = sum A dm into `delta_mu_sum` and h = sum A^2 ds
        into `delta_var_sum`, summed over the batch, or adds to them if `saved.accumulate`.

        Args:
            mu_w, var_w: of any shape, the same for both. mu_b, var_b: flat.

        Raises:
            ValueError: means and variances of different shapes.
        """
        w, v, b, v_b = (np.array(values, np.float32) for values in (mu_w, var_w, mu_b, var_b))
        for name, mu, var in (("weights", w, v), ("biases", b, v_b)):
            if mu.shape != var.shape:
                raise ValueError(f"set_prior(): means of {name} are of {mu.shape}, their variances of {var.shape}")
        self._set_prior((w.ravel(), v.ravel(), b, v_b), w.shape)

    def _set_prior(
        self, prior: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], weight_shape: tuple[int, ...]
    ) -> None:
        """Takes (mu_w, var_w, mu_b, var_b) as the parameters, in place where they exist; not inside `deferred_init`."""
        if is_deferring():
            if isinstance(self.parameters, Parameters):
                raise RuntimeError(
                    f"{self.get_layer_info()} has parameters already, and inside deferred_init() they cannot be drawn "
                    "anew: call init_weight_bias() outside of it"
                )
            self.parameters = cast(Parameters, DeferredParameters(self.get_layer_info(), weight_shape, prior[2].size))
        elif self.parameters is None:
            self.parameters = Parameters.from_prior(prior, weight_shape)
        else:
            self.mu_w, self.var_w, self.mu_b, self.var_b = prior

    def _claim(self, owner: Owner) -> None:
        """Marks the layer as part of the network `owner`; one whose network is gone becomes what a copy of it is.

        Raises:
            ValueError: it belongs to another network, or occurs twice in this one.
        """
        if self._owner is not None:
            raise ValueError(
                f"{self.get_layer_info()} is already part of a network; a layer belongs to one Sequential: use "
                "copy.deepcopy(layer), or copy.deepcopy(net.layers) for all of a network; copies keep the weights"
            )
        if "kernels" in self.__dict__:  # it has been attached
            self.__dict__ = self.__getstate__()
        self._network = ref(owner)

    def _release(self, owner: Owner) -> None:
        """Takes back `_claim`: the construction of `owner` failed, and another network may have the layer."""
        if self._owner is owner:
            self._network = None

    def _attach(self, kernels: Kernels) -> None:
        """Picks the kernels, in a network that is made or moved to another device, or works differently from now on."""
        self.kernels = kernels

    def _detach(self) -> None:
        """Copies parameters and state to the host, before the network moves to another device."""
        self.parameters = self.parameters and self.parameters.detached()
        self._keep_state()

    def _keep_state(self) -> None:
        """Copies the state to the host; `_attach_state` puts this copy into the memory that it is given."""
        self._saved_state = self._state_on_host()

    def state_tensors(self) -> tuple[TensorSpec, ...]:
        """State that the layer keeps between passes and does not learn. Its memory is `state`, by name."""
        return ()

    def _attach_state(self, state: dict[str, Array]) -> None:
        """Hands over the memory of `state_tensors`."""
        for spec in self.state_tensors():
            saved = None if self._saved_state is None else self._saved_state[spec.field]
            source = np.full(spec.size, spec.initial, np.float32) if saved is None else saved
            self.kernels.array.copy(source, state[spec.field])
        self.state, self._saved_state = state, None

    def _state_on_host(self) -> dict[str, np.ndarray] | None:
        if not self.state:
            return self._saved_state
        return {name: self.kernels.array.to_host(values) for name, values in self.state.items()}

    def leaves(self) -> Iterator[BaseLayer]:
        """The layers that compute: this one, or those inside a block, in forward order."""
        yield self

    def named_layers(self, path: str) -> Iterator[tuple[str, BaseLayer]]:
        """This layer, at the place `path`, and then all inside it in forward order, with their state-dict keys."""
        yield f"{self.name}.{path}", self

    def _input_checks(self) -> Iterator[Callable[[np.ndarray], None]]:
        """The `check_input` of the layers that take the input of this one, for the first layer of a network."""
        if hasattr(self, "check_input"):
            yield self.check_input

    # -- description ------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """The constructor arguments that results depend on, by name: numbers, strings, and lists of them.

        They describe the layer in `repr`, in files and in the comparison between ranks; a layer with arguments
        overrides this method. Arguments of the prior (gains, `init_method`) are left out: once the parameters are
        drawn, or come from a file or from rank 0, results no longer depend on them.
        """
        return {}

    def _own_settings(self) -> dict[str, Any]:
        """`settings`, without those of inner layers, which have their own entries in files."""
        return self.settings() if next(self.leaves()) is self else {}

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.settings().items())
        return f"{self.name}({arguments})" + (" frozen" if self.frozen else "")

    # -- computing --------------------------------------------------------------------------------------------

    @abstractmethod
    def forward(self, state: State, saved: Saved) -> State:
        """Moments of the output.

        Args:
            state: the input.
            saved: the context of this pass. It stores what `backward` needs, and provides memory.
        """

    @abstractmethod
    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        """Batch sums of the parameters, and the deltas of the layer's input if `saved.needs_input`.

        Args:
            delta: deltas of the output; consumed (changed in place, or given back to the pool).
            saved: the context that `forward` has filled.
        """

    def _run_forward(self, state: State, saved: Saved) -> State:
        """`forward`, called by what the layer is part of.

        A layer that is not `replayable` may know nothing of the rules of memory. What it gives is copied, as the next
        operation may overwrite it.

        Raises:
            TypeError, ValueError: such a layer gives no State, or one of another size.
        """
        out = self.forward(state, saved)
        if self.replayable:
            return out
        if not isinstance(out, State):
            raise TypeError(f"forward() of {self.get_layer_info()} has to give a State, got {type(out).__name__}")
        if out.var is None:
            out = out._replace(var=np.zeros((state.batch, self.out_shape.size), np.float32))
        own = {}
        for name, values in out._asdict().items():
            if values is not None:
                own[name] = saved.buffer(f"given {name}", state.batch, self.out_shape.size)
                self._copy_given(values, own[name])
        return State(**own)

    def _run_backward(self, delta: Delta, saved: Saved, needs_input: bool, accumulate: bool) -> Delta | None:
        """`backward`, called by what the layer is part of; what it gives is as the pool needs it, see `_run_forward`.

        Raises:
            TypeError, ValueError: a layer that is not `replayable` gives no Delta where one is needed, or one of
                another size.
        """
        into = self.backward(delta, saved.ask(needs_input, accumulate))
        if self.replayable:
            return into
        pool = saved.pool
        if not needs_input:  # nobody reads what the layer gives
            if isinstance(into, Delta) and into.memory is not None:
                pool.give(into)
            return None
        if not isinstance(into, Delta):
            raise TypeError(
                f"backward() of {self.get_layer_info()} has to give the Delta of its input if saved.needs_input, got "
                f"{type(into).__name__}"
            )
        if into.memory is not None and into.mu.dtype == into.var.dtype == np.float32:
            return into
        own = pool.take(len(delta.mu), self.in_shape.size)
        self._copy_given(into.mu, own.mu)
        self._copy_given(into.var, own.var)
        return own

    def _copy_given(self, values: Array, into: Array) -> None:
        """Copies numbers of any type and order."""
        if values.shape != into.shape:
            raise ValueError(f"{self.get_layer_info()} has to give arrays of {into.shape}, got {values.shape}")
        if values.dtype != np.float32 or not values.flags.c_contiguous:
            values = values.astype(np.float32, order="C")
        self.kernels.array.copy(values, into)

    # -- names and copies -------------------------------------------------------------------------------------

    def get_layer_name(self) -> str:
        return self.name

    def get_layer_info(self) -> str:
        """Name and sizes, as pytagi writes them into its files."""
        return f"{self.name}()"

    def __getstate__(self) -> dict:
        """What a copy or a pickle holds: parameters and deltas, no tie to a network or device."""
        state = self.__dict__.copy()
        state["parameters"] = self.parameters and self.parameters.detached()
        state["_saved_state"] = self._state_on_host()
        state.pop("kernels", None)
        return state | {"_network": None, "state": {}}

    def __setstate__(self, state: dict) -> None:
        if state.keys() >= {"_buffers", "_input"}:  # of an earlier version
            state = {name: value for name, value in state.items() if name not in OF_PASSES}
        self.__dict__.update(writable(state))


refuse_assignment(BaseLayer, ("frozen",), "call freeze() or unfreeze()")
