"""The contract of a layer.

A layer goes through three stages: *constructed* (hyper-parameters; priors drawn where the size is known), *built*
(`build`: the size of its input is known) and *attached* (`attach`: parameters live in the network's arena, kernels
are picked). Then `forward` maps a State to a State and `backward` a Delta to a Delta.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import numpy as np

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import NO_STATE, Normalization
from pytagi_ddp.nn.attributes import LAYER, KnownAttributes
from pytagi_ddp.nn.deferred import DeferredParameters, is_deferring
from pytagi_ddp.nn.hooks import LeafHooks
from pytagi_ddp.nn.owner import Owner
from pytagi_ddp.nn.parameters import Parameters, ParameterValues
from pytagi_ddp.nn.pytagi_view import LayerView, refuse_assignment
from pytagi_ddp.nn.state import UNKNOWN, Array, BlockMemory, Delta, DeltaPool, Reader, Shape, State
from pytagi_ddp.nn.tensors import TensorSpec
from pytagi_ddp.nn.unpickled import writable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


# What a layer promises of its passes, so that the library may leave something out. By default nothing is promised.
PROMISES = {
    *("replayable", "needs_variances", "spares_deltas", "takes", "takes_moments_of", "gives_moments"),
    *("begin", "backward_onto"),
}
# What a class may override and still compute in the same way; names that begin with two underscores are of these, too.
DESCRIPTIONS = {"name", "settings", "get_layer_name", "get_layer_info", "init_weight_bias", "_abc_impl"}


def _is_ours(kind: type) -> bool:
    """Whether a class is one of this library's."""
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


class BaseLayer(KnownAttributes, LayerView, ABC):
    """Base of all layers: sizes, parameters and buffers.

    Attributes:
        input_size, output_size: units per sample (0 before the layer is part of a network, where unknown).
        in_channels, in_height, in_width, out_channels, out_height, out_width: image geometry, 0 for flat units.
        training: whether statistics are taken from the batch. `train` and `eval` of a network set it for all of its
            layers; setting it on a block sets it for every layer inside. A BatchNorm2d with False in a network in
            training is frozen: it normalises by its running statistics, which stay as they are. (Its gamma and beta go
            on learning, unless `freeze` is called, too.) A copy of a layer keeps the value: call `train` on a network
            that is built from copies.
        frozen: whether steps leave the parameters as they are, see `freeze`; of a block: all parameters in it.
        bias: whether the layer has biases.
        mu_w, var_w, mu_b, var_b: means and variances of weights and biases: flat float32 views of the parameters (from
            a GPU read-only copies), assignable. After an assignment a backward pass needs a new forward pass. The
            network does not notice when values are written into such a view: call its `parameters_changed` then.
        delta_mu_w, ...: the deltas of the last backward pass, s * sum A dm and s^2 * sum A^2 ds, with the present
            variances s: a `step` applies them, and changes them.
        kernels: those of the network's device, from `attach` on.
        shared_sums: the layer's `num_sums` sums over the batch, from `attach_state` on.
    """

    _other_names = LAYER
    name = "BaseLayer"
    bias = False
    num_sums = 0  # sums over the batch that are added over ranks, in the tail of the reduced buffer
    is_leaf = True  # a layer that computes; False: a block of layers, or a change of order between them
    replayable = False  # True: its passes keep rule 6 of CONTRIBUTING.md, and may be replayed without their Python
    follows_backward = False  # whether it has an `after_backward`
    gives_jacobian = False  # whether its output states hold a Jacobian
    gives_moments = False  # whether `forward` can compute moments for the normalisation behind
    positive_noise = False  # whether outputs 1, 3, ... are never negative, as variances of noise are not
    checks_input = False  # whether it has a `check_input`; such a layer takes the input of a network only
    needs_variances = True  # whether `backward` reads the variances of the layer's input
    kept: tuple[str, ...] = ("_buffers", "_input")  # attributes in which a forward pass leaves what `backward` needs
    _left: frozenset[str] = frozenset()  # further ones that forward passes assign, see `_run_forward`
    _training = _way_back = True  # `_way_back`: whether a backward pass may follow; the network sets it
    _frozen = False
    recomputing = False  # True while a forward pass is repeated: nothing that outlasts the pass may change
    kernels: Kernels
    shared_sums: Array

    def __init_subclass__(cls, **options: Any) -> None:
        """Takes the inherited `PROMISES` from a class outside this library that computes in another way.

        It computes in another way if it, or a class outside this library that it is made of, overrides more than
        `DESCRIPTIONS`. A promise that the body of the class itself makes counts.
        """
        super().__init_subclass__(**options)
        ours = [base for base in cls.__mro__ if _is_ours(base)]
        known = set().union(*map(vars, ours)) - DESCRIPTIONS
        overridden = {name for base in cls.__mro__ if base not in ours for name in vars(base) if name in known}
        if any(not name.startswith("__") for name in overridden):
            for name in PROMISES - vars(cls).keys():
                setattr(cls, name, vars(BaseLayer)[name])

    mu_w, var_w = ParameterValues("w", "mu"), ParameterValues("w", "var")
    mu_b, var_b = ParameterValues("b", "mu"), ParameterValues("b", "var")
    delta_mu_w, delta_var_w = ParameterValues("w", "mu", deltas=True), ParameterValues("w", "var", deltas=True)
    delta_mu_b, delta_var_b = ParameterValues("b", "mu", deltas=True), ParameterValues("b", "var", deltas=True)

    def __init__(self) -> None:
        self.in_shape = self.out_shape = UNKNOWN
        self.parameters: Parameters | None = None
        self._buffers: dict[str, Array] = {}
        self._memory: BlockMemory | None = None  # holds the activations instead of `_buffers`, see `set_workspace`
        self._pool: DeltaPool | None = None  # holds what only the next operation reads, see `lend`
        self._reader = Reader.USER
        self._input = NO_STATE  # what the backward pass needs of the last forward pass
        self._network: ref[Owner] | None = None  # weak, so that a network's memory is free when it is dropped
        # State that is not learned, see `state_tensors`.
        self.state: dict[str, Array] = {}
        self._saved_state: dict[str, np.ndarray] | None = None  # on the way to another device, or in a copy
        self.pool_at_step = False  # True: running state waits for the sums of all ranks, until `update_running`
        self.reduce_sums: Callable[[Array], None] | None = None  # adds the sums of all ranks' batches, in place
        self.on_moments: Callable[[int, Array, Array], None] | None = None  # is given this rank's rows, mean and m2

    @property
    def training(self) -> bool:
        return self._training

    @training.setter
    def training(self, value: bool) -> None:
        with self._alone:
            for _, layer in self.named_layers(""):
                layer._training = bool(value)
            if self._owner is not None:
                self._owner.has_layers_of_other_modes()

    def freeze(self) -> None:
        """From now on, no step changes the parameters of the layer; of a block: those of all layers in it.

            for layer in net.layers[:-1]:  # fine-tuning: only the last layer learns
                layer.freeze()

        Means and variances stay as they are, also in `forget_evidence`. Predictions go on using both, and deltas still
        flow through the layer to those before it. Assignments, `load` and `load_state_dict` change the values.

        BatchNorm2d: gamma and beta are frozen. The running statistics are not learnt; `training = False` freezes those.

        Copies keep the setting, also by pickle. Files, checkpoints and state dicts hold what was learnt and not how to
        go on: a program that resumes a run freezes the same layers again, before or after it loads. On many ranks,
        freeze the same layers on every rank; the constructors of `DDPSequential` and the like compare them. A frozen
        layer saves no time.
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
                self._owner.has_frozen_layers()

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

    def check_input(self, values: np.ndarray) -> None:
        """Raises ValueError if some of `values` are no input of this layer; NaN stands for a missing one."""

    def init_weight_bias(self) -> None:
        """Draws the prior anew, in layers with parameters."""

    def draw_prior(self) -> None:
        """Draws the parameters, if the layer has any and they have not been drawn."""

    def set_prior(self, mu_w: ArrayLike, var_w: ArrayLike, mu_b: ArrayLike = (), var_b: ArrayLike = ()) -> None:
        """Takes means and variances of weights and biases as the prior; for `init_weight_bias` of a layer of your own.

        The parameters are `parameters.w`, of the shape of `mu_w`, and `parameters.b`, flat (None without biases). Of
        each, `mu` and `var` are its moments, and `backward` writes g = sum A dm into `delta_mu_sum` and h = sum A^2 ds
        into `delta_var_sum`, summed over the batch, or adds to them if `accumulate`.

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

    def claim(self, owner: Owner) -> None:
        """Marks the layer as part of the network `owner`; one whose network is gone becomes what a copy of it is.

        Raises:
            ValueError: it belongs to another network, or stands twice in this one.
        """
        if self._owner is not None:
            raise ValueError(
                f"{self.get_layer_info()} is already part of a network; a layer belongs to one Sequential: use "
                "copy.deepcopy(layer), or copy.deepcopy(net.layers) for all of a network; copies keep the weights"
            )
        if "kernels" in self.__dict__:  # it has been attached
            self.set_hooks(None)
            self.__dict__ = self.__getstate__()
        self._network = ref(owner)

    def release(self, owner: Owner) -> None:
        """Takes back `claim`: the construction of `owner` failed, and another network may have the layer."""
        if self._owner is owner:
            self._network = None

    def attach(self, kernels: Kernels) -> None:
        """Picks the kernels; buffers of another device are dropped."""
        self.kernels = kernels
        self._buffers.clear()
        self._input = NO_STATE

    def set_workspace(self, memory: BlockMemory | None) -> None:
        """Keeps activations in `memory` from now on, or (None) in buffers of the layer's own."""
        self._memory = memory

    def lend(self, pool: DeltaPool, reader: Reader) -> None:
        """Keeps in `pool`, from now on, what only the next operation reads.

        Args:
            reader: who reads the variances of the layer's output last. (The backward pass always reads the means and
                the Jacobian.)
        """
        self._pool, self._reader = pool, reader

    def detach(self) -> None:
        """Copies parameters and state to the host, before the network moves to another device."""
        self.parameters = self.parameters and self.parameters.detached()
        self.keep_state()

    def keep_state(self) -> None:
        """Copies the state to the host; `attach_state` puts this copy into the memory that it is given."""
        self._saved_state = self._state_on_host()

    def state_tensors(self) -> tuple[TensorSpec, ...]:
        """What the layer keeps between passes and does not learn. The arena provides the memory: `state`, by name."""
        return ()

    def attach_state(self, state: dict[str, Array], sums: Array) -> None:
        """Hands over the memory of `state_tensors`, and the layer's part of the reduced sums."""
        for spec in self.state_tensors():
            saved = None if self._saved_state is None else self._saved_state[spec.field]
            source = np.full(spec.size, spec.initial, np.float32) if saved is None else saved
            self.kernels.array.copy(source, state[spec.field])
        self.state, self._saved_state, self.shared_sums = state, None, sums

    def _state_on_host(self) -> dict[str, np.ndarray] | None:
        if not self.state:
            return self._saved_state
        return {name: self.kernels.array.to_host(values) for name, values in self.state.items()}

    def update_running(self) -> None:
        """Updates the running state from the batch sums, of this rank or of all ranks, and clears the sums."""

    def normalisation_moments(self) -> tuple[Array, Array, Array, Array] | None:
        """(means, variances, batch means, batch variances): running ones and those of the last training batch.

        None where the layer keeps no such statistics.
        """
        return None

    def set_hooks(self, hooks: LeafHooks | None) -> None:
        """Hands the network's hooks to the layers inside."""

    def leaves(self) -> Iterator[BaseLayer]:
        """The layers that compute: this one, or those inside a block, in forward order."""
        yield self

    def parts(self) -> Iterator[BaseLayer]:
        """This layer and all that is inside it, changes of order too: everything that may keep something of a pass."""
        yield self

    def put_away(self) -> dict[str, Any]:
        """Returns what the last pass has left here, which the next pass will not overwrite; `take_up` restores it."""
        own = {name: self.__dict__[name] for name in {*self.kept, *self._left} if name in self.__dict__}
        self._buffers = {}
        return own

    def take_up(self, kept: dict[str, Any]) -> None:
        """Restores what `put_away` returned."""
        self.__dict__.update(kept)

    def named_layers(self, path: str) -> Iterator[tuple[str, BaseLayer]]:
        """This layer, at the place `path`, and then all inside it in forward order, with their state-dict keys."""
        yield f"{self.name}.{path}", self

    # -- description ------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """The constructor arguments that results depend on, by name: numbers, strings, and lists of them.

        They describe the layer in `repr`, in files and in the comparison between ranks; a layer with arguments
        overrides this method. Arguments of the prior (gains, `init_method`) are left out: once the parameters are
        drawn, or come from a file or from rank 0, results no longer depend on them.
        """
        return {}

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.settings().items())
        return f"{self.name}({arguments})" + (" frozen" if self.frozen else "")

    # -- computing --------------------------------------------------------------------------------------------

    @abstractmethod
    def forward(self, state: State) -> State:
        """Moments of the output, in buffers that the next call uses again; keeps what `backward` needs."""

    @abstractmethod
    def backward(self, delta: Delta, pool: DeltaPool, need_input: bool, accumulate: bool) -> Delta | None:
        """Batch sums of the parameters, and the deltas of the layer's input if `need_input`.

        Args:
            delta: deltas of the output; consumed (changed in place, or given back to the pool).
            pool: where new deltas come from.
            need_input: whether an earlier layer or the user needs the deltas of the input.
            accumulate: add to the batch sums of the last pass instead of replacing them.
        """

    def _run_forward(self, forward: Callable[..., Any], state: State, *taken: Any) -> Any:
        """`forward(state, *taken)`: the layer's `forward` or `begin`, called by what the layer is part of.

        A layer that is not `replayable` may know nothing of the rules of memory. What it gives is copied, as the next
        operation may overwrite it, and what it assigns to its attributes is taken for what `backward` needs.

        Raises:
            TypeError, ValueError: such a layer gives no State, or one of another size.
        """
        if self.replayable:
            return forward(state, *taken)
        before, nothing = dict(self.__dict__), object()
        out = forward(state, *taken)
        self._left |= {name for name, value in self.__dict__.items() if before.get(name, nothing) is not value}
        if not isinstance(out, State):
            raise TypeError(f"forward() of {self.get_layer_info()} has to give a State, got {type(out).__name__}")
        if out.var is None:
            out = out._replace(var=np.zeros((state.batch, self.out_shape.size), np.float32))
        own = {}
        for name, values in out._asdict().items():
            if values is not None:
                own[name] = self._buffer(f"given {name}", state.batch, self.out_shape.size)
                self._copy_given(values, own[name])
        return State(**own)

    def _run_backward(self, delta: Delta, pool: DeltaPool, need_input: bool, accumulate: bool) -> Delta | None:
        """`backward`, called by what the layer is part of; what it gives is as the pool needs it, see `_run_forward`.

        Raises:
            TypeError, ValueError: a layer that is not `replayable` gives no Delta where one is needed, or one of
                another size.
        """
        into = self.backward(delta, pool, need_input, accumulate)
        if self.replayable:
            return into
        if not need_input:  # nobody reads what the layer gives
            if isinstance(into, Delta) and into.memory is not None:
                pool.give(into)
            return None
        if not isinstance(into, Delta):
            raise TypeError(
                f"backward() of {self.get_layer_info()} has to give the Delta of its input if need_input, got "
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

    def after_backward(self, batch: int, repeated: bool) -> None:
        """Called by the network after each backward pass, whether it walked through the layers or was replayed.

        Args:
            batch: samples of the pass.
            repeated: whether another backward pass has followed the same forward pass before.
        """

    @property
    def spares_deltas(self) -> bool:
        """Whether `backward` does not change deltas that another branch still has to read, see `DeltaPool.share`."""
        return False

    def takes(self, activation: str) -> bool:
        """Whether `forward` and `begin` also compute an activation in front of the layer, given as second argument.

        Args:
            activation: the name of its formula.
        """
        return False

    def takes_moments_of(self, layer: BaseLayer) -> bool:
        """Whether `layer` should leave partial moments of its output, after an activation or not, for this layer."""
        return False

    def begin(self, state: State) -> State | Normalization:
        """`forward`; or a part of it and what is left to do, which the next operation does together with its own."""
        return self.forward(state)

    def backward_onto(self, onto: Delta, delta: Delta, pool: DeltaPool, accumulate: bool) -> Delta | None:
        """`backward`, with `onto` added to the deltas of the input; the memory of `onto` is given back or returned."""
        into = self._run_backward(delta, pool, True, accumulate)
        if into is not None:
            self.kernels.elementwise.add_state(into, onto)
        pool.give(onto)
        return into

    def _buffer(self, name: str, batch: int, size: int, dtype: type = np.float32) -> Array:
        """(batch, size) array for activations, from memory that is kept and grows to the largest batch seen."""
        if self._memory is not None:
            return self._memory.take(batch, size, dtype)
        array = self._buffers.get(name)
        if array is None or array.shape[0] < batch or array.shape[1] != size:
            array = self._buffers[name] = self.kernels.array.empty((batch, size), dtype)
        return array[:batch]

    def _scratch(self, name: str, shape: tuple[int, ...]) -> Array:
        """Uninitialised array of any shape, from memory that is kept between calls and grows to the largest."""
        size = math.prod(shape)
        memory = self._buffers.get(name)
        if memory is None or memory.size < size:
            memory = self._buffers[name] = self.kernels.array.empty(size)
        return memory[:size].reshape(shape)

    def _carried(self, name: str) -> Array:
        """What the layer carried into this pass: `forward` reads it, and it stays there for `backward`.

        It is a copy, so that a pass that is run again begins where it began the first time.
        """
        source = self.state[name]
        kept = self._scratch(f"carried {name}", source.shape)
        if not self.recomputing:
            self.kernels.array.copy(source, kept)
        return kept

    def _carry(self, name: str, values: Array) -> None:
        """Lets the next pass begin with `values`, which this one has made; a pass that is run again changes nothing."""
        if not self.recomputing:
            self.kernels.array.copy(values, self.state[name])

    @property
    def buffer_bytes(self) -> int:
        """Size of what is kept for a batch: outputs, Jacobians, scratch; not the parameters."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def _output(self, batch: int) -> State:
        """Memory for the output. Its variances may be overwritten after the next operation, see `needs_variances`."""
        return State(self._units("mu", batch), self._units("var", batch, Reader.NEXT))

    def _units(self, name: str, batch: int, reader: Reader = Reader.BACKWARD) -> Array:
        """(batch, units) array for the output, which stays until `reader` and the layer's own reader have read it."""
        last, size = max(reader, self._reader), self.out_shape.size
        if self._pool is None or last == Reader.USER or (last == Reader.BACKWARD and self._way_back):
            return self._buffer(name, batch, size)
        return self._pool.lend(batch, size)

    def _with_variance(self, state: State) -> State:
        """`state` with variances: zeros for a deterministic one."""
        if state.var is not None:
            return state
        zeros = self._buffers.get("zeros")
        if zeros is None or zeros.shape[0] < state.batch:
            zeros = self._buffers["zeros"] = self.kernels.array.zeros((state.batch, self.in_shape.size))
        return state._replace(var=zeros[: state.batch])

    # -- names and copies -------------------------------------------------------------------------------------

    def get_layer_name(self) -> str:
        return self.name

    def get_layer_info(self) -> str:
        """Name and sizes, as pytagi writes them into its files."""
        return f"{self.name}()"

    def __getstate__(self) -> dict:
        """What a copy or a pickle holds: parameters and deltas, no buffers, no tie to a network or device."""
        state = self.__dict__.copy()
        state["parameters"] = self.parameters and self.parameters.detached()
        state["_saved_state"] = self._state_on_host()
        for name in ("kernels", "shared_sums"):
            state.pop(name, None)
        state.update(_buffers={}, _memory=None, _pool=None, _input=NO_STATE, _network=None, state={})
        state.update(pool_at_step=False, reduce_sums=None, on_moments=None)  # a copy belongs to no DDPSequential
        return state

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(writable(state))


refuse_assignment(BaseLayer, ("frozen",), "call freeze() or unfreeze()")
