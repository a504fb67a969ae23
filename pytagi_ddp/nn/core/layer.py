"""The contract of a layer.

A layer goes through three stages: *constructed* (hyper-parameters; priors drawn where the size is known), *built*
(`build`: the size of its input is known) and *attached* (parameters live in the network's arena, kernels are picked).
Then `forward` maps a State to a State, and `backward` a Delta to a Delta; `forward` saves values for `backward` in a
`Saved`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from reprlib import Repr
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import numpy as np

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.nn.core.attributes import LAYER, KnownAttributes, is_ours
from pytagi_ddp.nn.core.deferred import DeferredParameters, is_deferring
from pytagi_ddp.nn.core.parameters import Parameters, ParameterValues
from pytagi_ddp.nn.core.pytagi_view import LayerView, refuse_assignment
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.state import UNKNOWN, Array, Delta, Shape, State
from pytagi_ddp.nn.core.step import Change
from pytagi_ddp.nn.core.tensors import TensorSpec
from pytagi_ddp.nn.core.unpickled import writable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


# Properties of a layer's passes that allow the library to skip work. By default a layer has none of them.
PROMISES = ("replayable", "needs_variances", "spares_deltas")
LONG = 200  # characters of a setting, from which `repr` shortens its lists
# Methods that a class may override without changing what it computes; so are names that begin with two underscores.
DESCRIPTIONS = {"name", "settings", "get_layer_name", "get_layer_info", "init_weight_bias", "_abc_impl"}

# Attributes of layers of earlier versions that held passes; their pickles contain them.
OF_PASSES = {
    *("_angles", "_buffers", "_ends", "_input", "_kept", "_left", "_memory", "_norm", "_pool", "_reader", "_trained"),
    *("_way_back", "_winner", "made", "on_moments", "pool_at_step", "recomputing", "reduce_sums", "sums"),
}
BASE = "BaseLayer"  # the name of classes without one


def _shortened(value: Any) -> str:
    text = repr(value)
    if len(text) <= LONG:
        return text
    shorter = Repr()
    shorter.maxlist = 3
    return shorter.repr(value)


class BaseLayer(KnownAttributes, LayerView, ABC, other_names=LAYER):
    """Base of all layers: sizes, parameters and buffers.

    Attributes:
        input_size, output_size: units per sample (0 before the layer is part of a network, where unknown).
        in_channels, in_height, in_width, out_channels, out_height, out_width: image geometry, 0 for flat units.
        training: whether statistics come from the batch. `train` and `eval` of a network set it for all layers; setting
            it on a block sets it for every layer inside. A BatchNorm2d with False in a network in training is frozen:
            it normalises by its running statistics, which do not change. (Its gamma and beta still learn, unless you
            call `freeze`.) A copy of a layer keeps the value: call `train` on a network that is built from copies.
        frozen: whether steps do not change the parameters, see `freeze`; for a block: all parameters in it.
        bias: whether the layer has biases.
        mu_w, var_w, mu_b, var_b: means and variances of weights and biases: flat float32 views of the parameters (from
            a GPU read-only copies), assignable. After an assignment, a backward pass needs a new forward pass. After
            you write into such a view, call `parameters_changed` of the network.
        delta_mu_w, ...: the deltas of the last backward pass, s * sum A dm and s^2 * sum A^2 ds, with the present
            variances s. A `step` applies them; they change with the variances.
        kernels: those of the network's device.
    """

    name = BASE
    bias = False
    replayable = False  # whether passes only call kernels, so that they can be replayed without Python
    gives_jacobian = False  # whether its output states hold a Jacobian
    needs_variances = True  # whether `backward` reads the variances of the layer's input
    pull_factor: float | None = None  # instead of the `prior_factor` of an `EvidenceSchedule`
    spares_deltas = False  # whether `backward` does not change `delta`, or gets other memory by `DeltaPool.own`
    _setting_names: tuple[str, ...] = ()  # attributes that `settings` gives
    _is_leaf = True  # a layer that computes; False: a block of layers, or a change of order between them
    _training = True
    _frozen = False
    _unpulled = False  # whether it was frozen in each `fit` since the schedule was made
    kernels: Kernels

    def __init_subclass__(cls, **options: Any) -> None:
        """Names a class of this library, and one outside it that neither has nor inherits a name.

        A class outside it that computes in another way loses the inherited `PROMISES`.

        A class computes in another way if it, or a base outside this library, overrides more than `DESCRIPTIONS`. A
        promise in the body of the class itself counts.
        """
        super().__init_subclass__(**options)
        if is_ours(cls) or cls.name == BASE:
            cls.name = vars(cls).get("name", cls.__name__)
        ours = [base for base in cls.__mro__ if is_ours(base)]
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
        self._network: ref[Any] | None = None  # weak, so that deleting a network frees its memory
        # State that is not learned, see `state_tensors`.
        self.state: dict[str, Array] = {}
        self._saved_state: dict[str, np.ndarray] | None = None  # while moving to another device, or in a copy

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

        Means and variances do not change, also in `forget_evidence`. Predictions still use them, and deltas are still
        propagated to earlier layers. Assignments, `load` and `load_state_dict` change the values.

        Of a BatchNorm2d, gamma and beta are frozen. To freeze its running statistics, set `training = False`.

        Copies and pickles keep the setting. Files, checkpoints and state dicts do not store it: a program that resumes
        a run freezes the same layers again, before or after it loads. On many ranks, freeze the same layers on every
        rank; the constructors of `DDPSequential` and the other wrappers compare them. A frozen layer saves no time.
        """
        self._set_frozen(True)

    def unfreeze(self) -> None:
        """Undoes `freeze`: steps change the parameters again, starting from their present variances."""
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
        """The input shape of the layer as the first of a network; None if it does not determine one."""
        return None

    def features_by_step(self, features: int) -> int | None:
        """Features of the output for `features` of the input; None unless the layer processes each time step alone."""
        return None

    def input_shape(self, shape: Shape) -> Shape:
        """The shape in which the layer reads an input of `shape`: perhaps as an image, or in another order of memory.

        By default, a `forward` outside this library gets images with channels first. One for which the order does not
        matter may return `shape`, so that nothing is transposed.

        Raises:
            ValueError: an input of this shape does not fit the layer.
        """
        return shape if is_ours(type(self).forward) else shape.ordered(channels_last=False)

    def build(self, shape: Shape) -> Shape:
        """Sets the shape of the input, a result of `input_shape`; returns that of the output."""
        self.in_shape = shape
        self.out_shape = self.infer_output(shape)
        return self.out_shape

    def infer_output(self, shape: Shape) -> Shape:
        """The shape of the output, from that of the input; by default the same. A layer that changes it overrides this.

        Raises:
            ValueError: an input that does not fit.
        """
        return shape

    @property
    def steps(self) -> int:
        """Time steps at which the parameters are used; each counts as a sample for the cap of their change."""
        return 1

    def init_weight_bias(self) -> None:
        """Draws the parameters again from the prior, in layers that have parameters."""

    def set_prior(self, mu_w: ArrayLike, var_w: ArrayLike, mu_b: ArrayLike = (), var_b: ArrayLike = ()) -> None:
        """Sets means and variances of weights and biases; for `init_weight_bias` of a layer of your own.

        The parameters are `parameters.w`, of the shape of `mu_w`, and `parameters.b`, flat (None without biases). Of
        each, `mu` and `var` are its moments, and `backward` writes g = sum A dm into `delta_mu_sum` and h = sum A^2 ds
        into `delta_var_sum`, summed over the batch, or adds to them if `saved.accumulate`.

        An `EvidenceSchedule`, the default of `fit`, pulls parameters towards this prior. Means that are all equal are
        its mean. Means that differ count as drawn around 0, and are pulled to 0.

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
        """Sets (mu_w, var_w, mu_b, var_b) as the parameters, in place if they exist; not inside `deferred_init`."""
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
            if self._owner is not None:
                self._owner.passes.invalidate(Change.PRIOR)

    def _claim(self, owner: Any) -> None:
        """Marks the layer as part of the `Sequential` `owner`. A layer of a deleted network is first reset like a copy.

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

    def _release(self, owner: Any) -> None:
        """Undoes `_claim` after the construction of `owner` has failed, so that another network can use the layer."""
        if self._owner is owner:
            self._network = None

    def _attach(self, kernels: Kernels) -> None:
        """Sets the kernels: in a new network, or after a change of its device or precision."""
        self.kernels = kernels

    def _detach(self) -> None:
        """Copies parameters and state to the host, before the network moves to another device."""
        self.parameters = self.parameters and self.parameters.detached()
        self._keep_state()

    def _keep_state(self) -> None:
        """Copies the state to the host; `_attach_state` writes this copy to the new memory."""
        self._saved_state = self._state_on_host()

    def state_tensors(self) -> tuple[TensorSpec, ...]:
        """State that is kept between passes and not learnt. Its memory is in `state`, by name."""
        return ()

    def _attach_state(self, state: dict[str, Array]) -> None:
        """Sets the memory of `state_tensors`."""
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
        """This layer, at the place `path`, then all layers inside it in forward order, with their state-dict keys."""
        yield f"{self.name}.{path}", self

    def _input_checks(self) -> Iterator[Callable[[np.ndarray], None]]:
        """`check_input` of each layer that reads the input of this one; for the first layer of a network."""
        if hasattr(self, "check_input"):
            yield self.check_input

    # -- description ------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """The constructor arguments that results depend on, by name: numbers, strings, and lists or arrays of them.

        They are used by `repr`, in files and in the comparison between ranks; a layer with arguments overrides this
        method. Arguments of the prior (gains, `init_method`) are left out, because results do not depend on them once
        the parameters are set.
        """
        return {name: getattr(self, name) for name in self._setting_names}

    def _own_settings(self) -> dict[str, Any]:
        """`settings` without those of inner layers, which have entries of their own in files."""
        return self.settings() if next(self.leaves()) is self else {}

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={_shortened(value)}" for name, value in self.settings().items())
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
        """`forward`, as the chain or block around the layer calls it.

        The result of a layer that is not `replayable` is copied, because the next operation may overwrite it.

        Raises:
            TypeError, ValueError: such a layer gives no State, one of another size, or negative variances.
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
        if isinstance(own["var"], np.ndarray) and (least := own["var"].min(initial=0)) < 0:
            raise ValueError(
                f"variances of {self.get_layer_info()} must not be negative, and the smallest is {least}: "
                "np.maximum(var, 0) removes rounding errors"
            )
        return State(**own)

    def _run_backward(self, delta: Delta, saved: Saved, needs_input: bool, accumulate: bool) -> Delta | None:
        """`backward`, as the chain or block around the layer calls it; the result is copied to memory of the pool if
        needed.

        Raises:
            TypeError, ValueError: a layer that is not `replayable` gives no Delta where one is needed, or one of
                another size.
        """
        into = self.backward(delta, saved.ask(needs_input, accumulate))
        if self.replayable:
            return into
        pool = saved.pool
        if not needs_input:  # the result is not read
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
        """The content of a copy or pickle: parameters and deltas, but no reference to a network or device."""
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
