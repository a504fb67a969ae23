"""A network of layers in order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.files import atomic_write
from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.nn.core.alone import alone
from pytagi_ddp.nn.core.arena import DeferredArena, ParameterArena
from pytagi_ddp.nn.core.attributes import NETWORK, KnownAttributes
from pytagi_ddp.nn.core.data_struct import BaseDeltaStates, BaseHiddenStates
from pytagi_ddp.nn.core.deferred import is_deferring
from pytagi_ddp.nn.core.fitting import fit
from pytagi_ddp.nn.core.forgetting import check_factor
from pytagi_ddp.nn.core.hooks import Hook, HookHandle
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.pytagi_view import refuse_assignment
from pytagi_ddp.nn.core.running import RunningStatistics
from pytagi_ddp.nn.core.state import Shape
from pytagi_ddp.nn.core.step import Change, Step
from pytagi_ddp.nn.core.table import columns
from pytagi_ddp.nn.core.unpickled import writable
from pytagi_ddp.nn.files import csv_files, persistence, pytagi_format, state_dicts
from pytagi_ddp.nn.layers.chain import Chain, LayerSequence, listing
from pytagi_ddp.nn.layers.recompute import is_block
from pytagi_ddp.nn.run.evidence import EvidenceSchedule
from pytagi_ddp.nn.run.network_input import MISSING, moments_of_samples
from pytagi_ddp.nn.run.passes import Passes
from pytagi_ddp.nn.run.rebuild import change_storage, move
from pytagi_ddp.nn.tools.inspection import Inspection, inspect
from pytagi_ddp.nn.tools.profile import Profile, profile
from pytagi_ddp.nn.tools.recurrent_network import States, lstm_states, set_lstm_states, smooth
from pytagi_ddp.nn.tools.update_bn import StatisticsChange, take_statistics
from pytagi_ddp.validate import as_integers, check_batch_size, check_predictions, flat_float32

if TYPE_CHECKING:
    from typing_extensions import Self


class Sequential(KnownAttributes, LayerSequence, other_names=NETWORK):
    """Layers run one after the other, trained by TAGI.

    One training step: `forward`, an `OutputUpdater` that fills `input_delta_z_buffer` from the observations,
    `backward`, `step`.

    `net[0]`, `net[-1]`, `len(net)` and `for layer in net` give layers, and `net[1:3]` a tuple of them. A layer belongs
    to one network at a time, until that network is deleted. `Sequential(copy.deepcopy(net[1:3]))` is an independent
    network that starts with the same weights.

    Args:
        layers: at least one, one by one or as one list or tuple; the first one that is not an activation must know the
            size of its input.
        checkpoint_blocks: keep only the outputs of blocks (`LayerBlock`, `ResNetBlock`, `Parallel`) for the backward
            pass, and run each block again in the backward pass: less memory, more time, the same bits.
        precision: "float32", or "mixed" for less time on CPUs with avx512_bf16 instructions: where dense layers and
            convolutions make variances and their deltas, products round their factors to bfloat16 (by up to 0.4 %).
            Products that make means, and all sums, stay float32.

    Attributes:
        layers: the layers as given.
        arena: the memory of the parameters. kernels: those of the network's device.
        output_z_buffer: moments of the last output (`BaseHiddenStates`); `forward` of another network accepts it as its
            input.
        input_delta_z_buffer: deltas at the output, where `backward` starts.
        output_delta_z_buffer: deltas at the input, where `backward` ends (with `input_state_update`).
        passes: state of the training step, and the interface for wrappers of a network, see `Passes`.
        trainer: the `DDPSequential` or the like that trains this network, or None.
        schedule: the `EvidenceSchedule` of its steps, or None; None can be assigned.
        num_samples: the least number of time steps that `smoother` returns, for which SLSTM layers reserve memory;
            None: as many as were recorded.
        input_state_update: whether `backward` computes the deltas of the network's input.
        missing_inputs: the meaning of NaN in `mu_x`. "error" (default): an error is raised. "standard normal": an
            unknown value N(0, 1), the prior of a standardised input; its variance is propagated through the network and
            widens the prediction. "pass": NaN goes into the layers unchanged, as in pytagi; their output is then
            meaningless. An `Embedding` always raises an error for NaN.
        device: "cpu" or "cuda:<index>"; assigning it calls `to_device`.
        checkpoint_blocks: as above; may be set at any time, and `backward` then needs a new forward pass first.
        precision: as above; may be set at any time, likewise.

    Raises:
        ValueError: layers that do not fit together, or belong to another network; the message names the sizes. Or
            `checkpoint_blocks` without a block.
        TypeError: something that is not a layer.
        RuntimeError: a precision that the device does not have; says why.

    Example:
        >>> net = Sequential(Linear(1, 16), ReLU(), Linear(16, 1))
        >>> updater = OutputUpdater(net.device)
        >>> mu, var = net(x)
        >>> updater.update(net.output_z_buffer, y, var_y, net.input_delta_z_buffer)
        >>> net.backward()
        >>> net.step()

    Only one thread at a time may use a network. While a thread runs a pass or a step, calls and assignments to layers
    from another thread raise RuntimeError. So do `backward` and `step` if another thread has run `forward` in training
    mode in between. Hooks run in the thread of the pass, and may use the network. Different networks can be used in
    different threads.

    Source: Goulet, Nguyen & Amiri (2021), "Tractable approximate Gaussian inference for Bayesian neural networks",
    JMLR 22. Interface: pytagi.
    """

    _first_layer = 0  # the number of the first layer, counted in the whole network if this is a part of one
    _make_arena: Callable[[dict[str, BaseLayer], Kernels], Any] = ParameterArena
    in_shape: Shape
    out_shape: Shape
    num_samples: int | None = 0
    _smoothed_outputs: tuple[np.ndarray, np.ndarray] | None = None
    _training = True
    _input_state_update = False

    def __init__(
        self, *layers: BaseLayer | Sequence[BaseLayer], checkpoint_blocks: bool = False, precision: str = "float32"
    ):
        get_kernels("cpu", precision)  # refuses an unknown precision before layers are claimed
        self._precision = precision
        self._chain = Chain(layers, "Sequential")
        try:
            self._build()
            self._chain.recompute_blocks(checkpoint_blocks)
        except Exception:
            for layer in self.layers:
                layer._release(self)
            raise
        if is_deferring():
            self._make_arena = DeferredArena
        self._device = "cpu"
        self._missing_inputs = "error"
        self.output_z_buffer = BaseHiddenStates()
        self.output_z_buffer.arrange(self.out_shape)
        self.input_delta_z_buffer = BaseDeltaStates()
        self.output_delta_z_buffer = BaseDeltaStates()
        self.trainer: Any = None
        self.passes = Passes(self)
        self._attach()

    def _build(self) -> None:
        for layer in self.layers:
            layer._claim(self)
        shape = self._chain.default_input_shape()
        if shape is None:
            raise ValueError("the size of the input is unknown: start with a layer that states it, such as Linear")
        self.out_shape = self._chain.build(shape, channels_last=False)
        of_steps = (leaf for leaf in self._chain.leaves() if hasattr(leaf, "seq_len"))
        of_one_step = shape.steps == 1 and any(leaf.in_shape.steps == 1 for leaf in of_steps)
        self.in_shape = replace(shape, of_one_step=of_one_step)

    def _attach(self) -> None:
        self.kernels = get_kernels(self.device, self._precision)
        self._chain.attach(self.kernels)
        self.arena: ParameterArena = self._make_arena(dict(self.named_leaves()), self.kernels)
        self.passes.attach(self._chain, self.arena, self.kernels)
        self._express, self._one_thread = self.passes.express, self.passes.one_thread
        self.output_z_buffer.hold(self.output_z_buffer.on(self.device), self.device)
        self.input_delta_z_buffer.move(self.device)
        self.output_delta_z_buffer.move(self.device)

    @property
    def layers(self) -> tuple[BaseLayer, ...]:  # a tuple, because passes would not notice a change of a list
        return tuple(self._chain.layers)

    @property
    def checkpoint_blocks(self) -> bool:
        return self._chain.recomputes

    @checkpoint_blocks.setter
    @alone
    def checkpoint_blocks(self, value: bool) -> None:
        if value != self.checkpoint_blocks:
            self._chain.recompute_blocks(value)
            self._attach_again()

    @property
    def precision(self) -> str:
        return self._precision

    @precision.setter
    @alone
    def precision(self, value: str) -> None:
        kernels = get_kernels(self.device, value)
        if value != self._precision:
            self.kernels, self._precision = kernels, value
            self._attach_again()

    def materialize(self) -> None:
        """Draws the parameters of a network that was made inside `deferred_init`; does nothing if they are drawn."""
        if self.arena.deferred:
            change_storage(self, ParameterArena)

    def _attach_again(self) -> None:
        """Attaches the chain again after its kernels or operations have changed; parameters stay in their memory."""
        self._chain.attach(self.kernels)
        self.passes.invalidate(Change.OPERATIONS)

    @property
    def missing_inputs(self) -> str:
        return self._missing_inputs

    @missing_inputs.setter
    def missing_inputs(self, value: str) -> None:
        if value not in MISSING:
            raise ValueError(f"missing_inputs must be one of {', '.join(map(repr, MISSING))}, got {value!r}")
        self._missing_inputs = value

    @property
    def input_state_update(self) -> bool:
        return self._input_state_update

    @input_state_update.setter
    @alone
    def input_state_update(self, value: bool) -> None:
        if value and not self._input_state_update:
            self.output_delta_z_buffer.set_size(0, 1)  # its deltas are of an earlier batch
        self._input_state_update = value

    # -- modes ------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Training mode: batch statistics come from the batch, and `backward` may follow a forward pass.

        Args:
            mode: True: training mode. False: evaluation mode, as by `eval`.

        Returns:
            The network.
        """
        if not mode:
            return self.eval()
        self._set_training(True)
        return self

    @alone
    def eval(self) -> Self:
        """Evaluation mode: running statistics, and no change of state by a forward pass.

        Returns:
            The network.

        Raises:
            FloatingPointError: on a GPU, if the last `step` met deltas that are not finite.
        """
        self.arena.check()
        self._set_training(False)
        return self

    @property
    def training(self) -> bool:
        """Whether the network is in training mode; assigning it calls `train` or `eval`."""
        return self._training

    @training.setter
    def training(self, value: bool) -> None:
        self.train() if value else self.eval()

    @alone
    def _set_training(self, training: bool) -> None:
        layers = [layer for _, layer in self.named_layers()]
        if any(layer.training != self.training for layer in layers):  # recorded passes treat these layers as frozen
            self.passes.invalidate(Change.MODES)
        self._training, self.passes.of_one_mode = training, True
        for layer in layers:
            layer._training = training

    # -- training ---------------------------------------------------------------------------------------------

    def forward(
        self, mu_x: ArrayLike | BaseHiddenStates, var_x: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Propagates means and variances of a batch.

        Args:
            mu_x: batch x inputs values of any real dtype and strides, flat or with one dimension for the batch in front
                (images as NCHW, sequences as batch, time steps, features), of NumPy, PyTorch, pandas, JAX or any
                library that `pytagi_ddp.arrays.to_numpy` reads; or the `output_z_buffer` of another network. A batch
                may have no samples, as the last one of a rank may be. Then the outputs are empty, and `step` does
                nothing.
            var_x: variances of the inputs, the same number; None for a deterministic input. A variance just below 0,
                within rounding errors of float32, counts as 0.

        Returns:
            (mu, var): means and variances of the outputs, flat float32, sample by sample; fresh arrays. From a GPU
            they are copied in the background; reading them waits for the copy.

        Raises:
            ValueError: sizes that do not fit, values that are not finite, negative variances, or the network's own
                output buffer.
        """
        moments = self._express.forward(self, self.passes, mu_x, var_x, self._training)
        if moments is not None:
            return moments
        with self._one_thread:
            state = self.passes.forward(mu_x, var_x)
            snapshot = self.kernels.array.snapshot
            return snapshot(state.mu), snapshot(state.var)

    __call__ = forward
    fit = fit

    @alone
    def update_bn(self, loader: Iterable[Any], num_batches: int | None = None) -> list[StatisticsChange]:
        """Sets the running statistics of every BatchNorm2d to the exact ones of the given batches: see `nn.update_bn`.

        Args:
            loader: batches of training data, inputs or (inputs, ...). num_batches: how many to use; None: all.

        Raises:
            RuntimeError: the network belongs to a `DDPSequential`: call `update_bn` of that. Other errors are those of
                `nn.update_bn`.
        """
        self._refuse_alone("update_bn()")
        return take_statistics(self, loader, num_batches)

    @alone
    def add_hook(self, before: Hook | None = None, after: Hook | None = None, outermost: bool = False) -> HookHandle:
        """Adds functions that every pass calls before and after each leaf (a layer that computes, also inside blocks).

            def after(leaf, direction):  # "forward" or "backward"
                ...
            with net.add_hook(after=after):
                ...

        Args:
            before, after: called with the leaf and "forward" or "backward". After a leaf's "backward", the batch sums
                of its parameters are complete, except for micro-batches still to come.
            outermost: True: `before` is called before those of the present hooks, and `after` after theirs. False: the
                other way round.

        Returns:
            A handle with `remove`; a `with` block calls it at its end. A copy of the network has no hooks.

        Raises:
            TypeError: a hook that is not callable.

        See `LeafHooks` for the leaves that a pass visits.
        """
        handle = HookHandle(self.passes.hooks, before, after, outermost)
        self.passes.invalidate(Change.CALLS)
        return handle

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Deltas of the `backward` calls inside, and of those up to the next `step`, add up instead of being replaced.

        Deltas are sums over samples, and parameters do not change in between. So the step is that of one large batch,
        except that BatchNorm2d normalises each micro-batch separately.

            with net.accumulate():
                for x, y in micro_batches[:-1]:
                    learn(x, y)  # forward, output update, backward
            learn(*micro_batches[-1])
            net.step()

        If an exception (or Ctrl-C) leaves the block, the accumulated deltas are dropped.
        """
        with self._one_thread:
            self.passes.accumulating, self.passes.lost = True, False
        try:
            yield
        except BaseException:
            self.passes.drop()
            raise

    def backward(self) -> None:
        """Propagates `input_delta_z_buffer` back and computes the deltas of all parameters.

        Raises:
            RuntimeError: there was no forward pass in training mode before; or since then the mode or the parameters
                have changed (also by a step); or `input_delta_z_buffer` still holds the deltas of an earlier batch; or
                the deltas of all ranks wait for a step; or an accumulation was cut short.
            ValueError: deltas of another batch size.
        """
        if not self._express.backward(self, self.passes):
            self.passes.backward()

    def step(self) -> None:
        """Adds the deltas to the parameters, each capped at sqrt(s)/c: c = 0.1, 2, 3 for batches of 1, 2-255, more.

        In a layer that works on every time step of a sequence alone, every time step counts as a sample.

        The deltas are those of the `backward` calls since the last step. Before the first one there are none, and
        nothing changes. A second step without another `backward` applies the same batch sums again, with the
        variances after the first step; pytagi adds the same deltas. With a `schedule`, the step then pulls all
        parameters towards their prior, and advances the schedule.

        Raises:
            RuntimeError: an output update has filled `input_delta_z_buffer`, and `backward` has not been called; or the
                network belongs to a wrapper such as `DDPSequential`: call the method of the wrapper.
            FloatingPointError: a delta is not finite. Parameters, running statistics, carried state and schedule are
                those after the previous step. On a GPU the next `step`, `eval` or `state_dict` raises this, so that no
                step waits for the previous one.
        """
        if self.trainer is not None:
            self._refuse_alone("step()")
        self.passes.step()

    def _refuse_alone(self, call: str) -> None:
        """Raises RuntimeError if the network belongs to a wrapper such as `DDPSequential`."""
        if self.trainer is not None:
            copied = "" if self.arena.in_shards else ". A copy of the network (copy.deepcopy) is independent of it"
            raise RuntimeError(f"{call} of a network in a {self.trainer.title}: call that one's, on every rank{copied}")

    @property
    def schedule(self) -> EvidenceSchedule | None:
        return self.passes.schedule

    @schedule.setter
    @alone
    def schedule(self, schedule: EvidenceSchedule | None) -> None:
        if not isinstance(schedule, EvidenceSchedule | None):
            raise TypeError(
                f"schedule takes an EvidenceSchedule, or None for steps without one, got {type(schedule).__name__}"
            )
        if schedule is not None and schedule.net not in (None, self):
            raise ValueError("this EvidenceSchedule belongs to another network: make a new one, or copy it")
        self.passes.use_schedule(schedule)

    @alone
    def drop_deltas(self) -> None:
        """Drops pending deltas, if any; called when the network gets other parameters.

        Raises:
            RuntimeError: they are being sent to other ranks, with `DDPConfig(buckets=...)`.
        """
        if self.trainer is not None:
            self.trainer.deltas_dropped()
        self.passes.forget()
        self.arena.drop_sums()
        self.parameters_changed()

    def parameters_changed(self) -> None:
        """Call this after writing to parameters in place: `backward` then needs a new forward pass.

        Assignments (`layer.mu_w = ...`), steps, and all methods that load or change parameters do so themselves.
        """
        self.passes.invalidate(Change.PARAMETERS)
        self.arena.keep_state()

    @alone
    def forget_evidence(self, factor: float) -> None:
        """Makes all evidence so far count for 1/factor; call it before an epoch with the same data, or in streams.

            for epoch in range(epochs):
                if 0 < epoch < 0.7 * epochs:
                    net.forget_evidence(4)
                train_on(batches)

        For every parameter, with the variance S0 of its prior,

            mean: unchanged            variance: S = min(factor S, S0)

        Each observation so far, and the prior, then counts as 1/factor of one. Without it, an epoch that repeats the
        data counts them as new evidence. In a stream that changes, call it after each step with a factor near 1, such
        as 1.001: a linear model then remembers about 1/(factor - 1) samples. The factor is rounded to float32: below
        1.00000006 it is 1. With an `EvidenceSchedule`, forgetting is not needed.

        S0 follows from the arguments of the present layers (gains, `init_method`, `scale`), also in a loaded network. A
        variance of 0 or above S0, running statistics and the memory of recurrent layers do not change. If a run is
        resumed within an epoch, do not call this method again for that epoch.

        Args:
            factor: at least 1; 1/factor is the discount factor.

        Raises:
            ValueError: a factor that is below 1 or not finite. TypeError: not a number.
            RuntimeError: deltas wait for a step, which would scale them by the changed variances; or the network
                belongs to a `DDPSequential`: call the method of that.

        Source: power discounting: Smith (1979), JRSS B 41; West & Harrison (1997), "Bayesian Forecasting and Dynamic
        Models", whose discount factor delta turns a variance C into C/delta.
        """
        number = check_factor(factor)
        self._refuse_alone("forget_evidence()")
        self.passes.refuse_waiting("forget_evidence()")
        self.arena.forget_evidence(number)
        self.parameters_changed()

    # -- results ----------------------------------------------------------------------------------------------

    @alone
    def predict(
        self, x: ArrayLike, batch_size: int = 256, var_x: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of the outputs for any number of samples, in evaluation mode, batch by batch.

        Args:
            x: (n, ...) inputs. In a network with a memory (an `LSTM` of one time step), one sample continues from it,
                and each of several samples begins without.
            var_x: variances of the inputs, of the same shape. All units of a layer count as independent, so that hidden
                layers make the effect of `var_x` too small: "Uncertain inputs" in docs/guide/uncertainty.md.
            batch_size: samples in memory at a time. Afterwards `output_z_buffer` holds the last batch; or all samples,
                if a recorded pass over as many samples was replayed.

        Returns:
            (mu, var), each (n, outputs), or (n, channels, height, width) where the output is an image, or (n, time
            steps, features) where it is a sequence.

        Raises:
            FloatingPointError: predictions are not finite, because numbers became too large for float32.
            ValueError: as `forward`. TypeError: a batch_size that is not an integer.
        """
        if type(batch_size) is not int or batch_size < 1:
            check_batch_size(batch_size)
        shape = self.out_shape
        one = shape.extents
        moments = None
        if self.passes.of_one_mode and not self.arena.carried.size:  # or a recorded pass may differ
            moments = self._express.forward(self, self.passes, x, var_x, False)
        if moments is not None:
            return moments[0].reshape(-1, *one), moments[1].reshape(-1, *one)
        mu_x, variances = moments_of_samples(x, var_x, "x", self.in_shape)
        n = len(mu_x)
        mu, var = np.empty((2, n, self.out_shape.size), np.float32)
        apart = n > 1 and self.arena.carried.size > 0
        with self.passes.evaluating():
            for i in range(0, n, batch_size):
                rows = slice(i, i + batch_size)
                if apart:
                    self._reset_carried()
                out = self.passes.forward(mu_x[rows], None if variances is None else variances[rows])
                self.kernels.array.copy(out.mu, mu[rows])
                self.kernels.array.copy(out.var, var[rows])
        if self._missing_inputs != "pass":
            check_predictions(mu, var)
        return mu.reshape(n, *one), var.reshape(n, *one)

    @alone
    def get_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """(mu, var) of the last forward pass, flat copies."""
        z = self.output_z_buffer
        return np.array(z.mu_a), np.array(z.var_a)

    @alone
    def get_input_states(self) -> tuple[np.ndarray, np.ndarray]:
        """The deltas (mu, var) of the network's input after `backward`, flat copies.

        Raises:
            RuntimeError: `input_state_update` is off, or was off during `backward`; or `backward` has not been called
                for the last batch.
        """
        deltas = self.output_delta_z_buffer
        if not self.input_state_update or not deltas.size or (self.passes.batch and not self.passes.went_back):
            raise RuntimeError(
                "get_input_states() returns what backward() has computed for the last batch: set input_state_update = "
                "True, then call backward()"
            )
        return np.array(deltas.delta_mu), np.array(deltas.delta_var)

    @alone
    def set_delta_z(self, delta_mu: ArrayLike, delta_var: ArrayLike) -> None:
        """Sets the deltas at the output, where `backward` starts; `backward` checks that the batch size fits.

        Raises:
            ValueError: not as many variances as means, or not a whole number of samples.
        """
        mu = flat_float32(delta_mu, "delta_mu")
        batch, rest = divmod(mu.size, self.out_shape.size)
        if rest:
            raise ValueError(f"delta_mu holds {mu.size} values, not a whole number of samples of {self.out_shape.size}")
        var = flat_float32(delta_var, "delta_var", mu.size)
        self.input_delta_z_buffer.set_size(mu.size, batch)
        self.input_delta_z_buffer.delta_mu = mu
        self.input_delta_z_buffer.delta_var = var

    def __repr__(self) -> str:
        return listing("Sequential", dict(enumerate(self.layers)))

    # -- parameters and files ---------------------------------------------------------------------------------

    def named_layers(self) -> Iterator[tuple[str, BaseLayer]]:
        """(state-dict key, layer) for every layer in forward order, a block before its layers."""
        for index, layer in enumerate(self.layers, self._first_layer):
            yield from layer.named_layers(str(index))

    def named_leaves(self) -> Iterator[tuple[str, BaseLayer]]:
        """The layers of `named_layers` that compute: those inside blocks, but not the blocks."""
        return ((key, layer) for key, layer in self.named_layers() if not is_block(layer))

    @property
    def num_parameters(self) -> int:
        """Number of parameter means (there are as many variances)."""
        return self.arena.num_parameters

    @alone
    def parameters(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """(mu_w, var_w, mu_b, var_b) of every layer with parameters, in forward order; flat copies, empty if none."""
        host = self.kernels.array.to_host
        learned = (leaf for leaf in self.arena.leaves if leaf.num_weights or leaf.num_biases)
        return [(host(leaf.mu_w), host(leaf.var_w), host(leaf.mu_b), host(leaf.var_b)) for leaf in learned]

    @alone
    def state_dict(self, carried: bool = False) -> state_dicts.StateDict:
        """Parameters and running statistics by layer, see `state_dicts.StateDict`; copies on the host.

        Args:
            carried: whether to include the states that recurrent layers carry from call to call.

        Raises:
            FloatingPointError: on a GPU, if the last `step` met deltas that are not finite.
        """
        self.arena.check()
        return state_dicts.by_entry(state_dicts.collect(self, carried))

    @alone
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the values of a `state_dict`, of this library or of pytagi (CPU or CUDA).

        Pending deltas are dropped, because they belong to the earlier parameters. Every method that loads does so.

        Raises:
            KeyError: layers are missing, or keys have no layer here. ValueError: sizes differ, values are not finite,
                or variances are negative. The message names all of them, and the network does not change.
            RuntimeError: deltas are being sent to other ranks, with `DDPConfig(buckets=...)`: call step() first.
        """
        state_dicts.put(self, state_dicts.check(self, state_dict))

    @alone
    def sample(self, n: int = 1, seed: int | np.random.Generator | None = None) -> list[Sequential]:
        """Draws n networks from the posterior: n functions, with parameters of variance 0.

            functions = net.sample(20, seed=0)
            curves = [function.predict(x)[0] for function in functions]

        A parameter N(m, S) becomes m + sqrt(S) e, with e ~ N(0, 1). A function has outputs without variance, and uses
        the same parameters at all inputs. So its values at several inputs have the right correlation, which `predict`
        does not return. Use functions for paths, maxima, Thompson sampling and expectations of nonlinear functions of
        the outputs. (Mixture activations give each unit a variance of 1e-6, and Remax and attention a larger one where
        all units, or all scores, are negative. It says nothing about the function: use the means alone.)

        The draws have the mean and variance of `predict` only approximately: well with `MixtureReLU`, while with `ReLU`
        standard deviations of draws can be 30 times as large, as a unit that is off in `predict` may be on in a draw.
        Neither includes the noise of observations.

        Running statistics, carried states, settings and device are those of this network, which does not change. The
        functions are in evaluation mode, and take as much memory as n copies.

        Args:
            n: number of networks, at least 0. seed: seed of the draws; None: another one each time.

        Raises:
            ValueError: a negative n, or a network in shards, whose parameters are on other ranks too.
        """
        as_integers("sample", 0, n=n)
        if self.arena.in_shards:
            raise ValueError("sample() of a network in shards: no rank has all of its parameters")
        rng = np.random.default_rng(seed)
        mu, var = self.kernels.array.to_host(self.arena.theta)
        functions = []
        for _ in range(n):
            function = copy.deepcopy(self)
            drawn = mu + np.sqrt(var) * rng.standard_normal(mu.shape, np.float32)
            function.kernels.array.copy(np.stack([drawn, np.zeros_like(drawn)]), function.arena.theta)
            function.schedule = None
            function.drop_deltas()
            functions.append(function.eval())
        return functions

    def params_from(self, other: Sequential) -> None:
        """Copies parameters and running statistics of a network with the same layers."""
        self.load_state_dict(other.state_dict())

    @alone
    def save(self, filename: str | bytes | Path, carried: bool = False) -> None:
        """Writes parameters, running statistics and architecture as safetensors. An interrupted call leaves no partial
        file.

        A file that is replaced keeps its permissions; a link is replaced by the file.

        Args:
            carried: whether to include the states that recurrent layers carry from call to call; `load` then restores
                them.

        Raises:
            ValueError: values that are NaN or infinite, which `load` would refuse; names them.
        """
        atomic_write(filename, persistence.to_bytes(self, carried=carried))

    @alone
    def load(self, filename: str | bytes | Path) -> None:
        """Reads a file of `save`, or a binary file of pytagi's `save`; drops deltas as `load_state_dict` does.

        Raises:
            ValueError: another architecture, or a truncated, changed or foreign file; the message names it, and the
                network does not change. OSError: the file does not exist, or is not a regular file.
        """
        state_dicts.put(self, persistence.check_path(self, filename))

    @alone
    def save_pytagi(self, filename: str | bytes | Path) -> None:
        """Writes the binary file that pytagi's `load` reads. An interrupted call leaves no partial file.

        Raises:
            ValueError: values that are NaN or infinite.
        """
        atomic_write(filename, pytagi_format.format_bytes(self))

    @alone
    def save_csv(self, filename: str | bytes | Path) -> None:
        """Writes four text files, `<filename>_1_mw.csv`, `_2_Sw.csv`, `_3_mb.csv`, `_4_Sb.csv`, one value per line.

        As in pytagi, they contain parameters only. After `load_csv`, compute the statistics of BatchNorm2d again
        (`update_bn`).
        """
        csv_files.save_csv(self, filename)

    @alone
    def load_csv(self, filename: str | bytes | Path) -> None:
        """Reads the four files of `save_csv`."""
        state_dicts.put(self, csv_files.check_csv(self, filename))

    @alone
    def get_neg_var_w_counter(self) -> dict[str, int]:
        """Weights whose variance fell to 0 or below in the last step (and became 1e-5), by layer; equal layers add."""
        counts: dict[str, int] = {}
        negative = self.arena.negative_variances()
        for layer in self.layers:
            info = layer.get_layer_info()
            counts[info] = counts.get(info, 0) + sum(negative[id(leaf)] for leaf in layer.leaves())
        return counts

    @alone
    def get_norm_mean_var(self) -> dict[str, tuple[list, list, list, list]]:
        """Running means, running variances, batch means and variances of the BatchNorm2d, by layer of the network.

        A key is `<info of the layer>_<its number>`; each list has one array per BatchNorm2d in the layer, more than one
        in a block.
        """
        result = {}
        for index, layer in enumerate(self.layers, self._first_layer):
            rows = [leaf.normalisation_moments() for leaf in layer.leaves() if isinstance(leaf, RunningStatistics)]
            if rows:
                by_kind = zip(*rows, strict=True)
                a, b, c, d = ([self.kernels.array.to_host(moments) for moments in kind] for kind in by_kind)
                result[f"{layer.get_layer_info()}_{index}"] = (a, b, c, d)
        return result

    # -- tables -----------------------------------------------------------------------------------------------

    def get_layer_stack_info(self) -> str:
        """One line per layer: its name and sizes."""
        return "".join(f"{layer.get_layer_info()}\n" for layer in self.layers)

    def summary(self) -> str:
        """A table of all computing layers: key, output shape, parameters, and which layers are frozen."""
        rows = [("layer", "output", "parameters", "")]
        for key, leaf in self.named_leaves():
            parameters = f"{leaf.num_weights + leaf.num_biases:,}"
            rows.append((key, str(leaf.out_shape), parameters, "frozen" if leaf.frozen else ""))
        rows.append(("total", "", f"{self.num_parameters:,}", ""))
        if not any(mark for *_, mark in rows):
            return columns([row[:3] for row in rows], "<>>")
        return columns(rows, "<>><")

    @alone
    def inspect(self, x: ArrayLike, var_x: ArrayLike | None = None) -> Inspection:
        """Statistics of each layer's parameters, and of its units on a batch: `print(net.inspect(x))`.

        By layer: the shares of uncertain, dead and saturated units; the signal-to-noise ratio |mu|/sqrt(var) of the
        weights; the mean ratio of variances to those of the prior; and, after a backward pass, the share of parameters
        whose delta the cap cuts. `LayerInspection` defines them.

        It uses a copy of the network, in evaluation mode: the network does not change, and the copy takes memory
        meanwhile.

        Args:
            x, var_x: a batch of inputs, as for `forward`.

        Returns:
            An `Inspection`, whose `rows` hold the numbers; `pytagi_ddp.plot.inspection` draws it.

        Raises:
            ValueError: sizes that do not fit, or values that are not finite.
        """
        return inspect(self, x, var_x)

    def profile(self, x: ArrayLike, y: ArrayLike | None = None, repeat: int = 3) -> Profile:
        """Time and memory of a training step by layer: `print(net.profile(x))`.

        The steps are those of a copy, in training mode: the network does not change, and the copy takes memory
        meanwhile. On a GPU, the measurement waits for each layer, so that the sum exceeds the time of a normal step.

        Args:
            x: a batch of inputs, as for `forward`.
            y: its observations; None: zeros. Times hardly depend on them.
            repeat: number of steps after a first one that is not measured; times are medians.

        Returns:
            A `Profile`, whose `rows` hold key, layer, forward_ms, backward_ms, memory (bytes) and share.

        Raises:
            ValueError: sizes that do not fit, values that are not finite, or repeat < 1.
        """
        return profile(self, x, y, repeat)

    # -- recurrent layers -------------------------------------------------------------------------------------

    @alone
    def get_lstm_states(self, time_step: int = -1) -> States:
        """Memory of each LSTM by the number of the layer: (mu_h, var_h, mu_c, var_c), moments of h and C, copies.

        The memory of layers in blocks is in `state_dict(carried=True)`. A layer of several time steps has none, and
        returns zeros.

        Args:
            time_step: -1 for the present memory; otherwise a time step, for the states of each SLSTM from the last
                `smoother`. An LSTM has its present memory only.

        Raises:
            IndexError: the last `smoother` did not have this time step.
        """
        return lstm_states(self, time_step)

    @alone
    def set_lstm_states(self, states: Mapping[int, Any] | Mapping[str, Any]) -> None:
        """Sets the memory of all LSTM layers or of some, as `get_lstm_states` gives it.

        Args:
            states: by the number of the layer, or by that number as text, as in JSON.

        Raises:
            KeyError: a number that is not that of an LSTM. ValueError: wrong number of values, values that are not
                finite, a negative variance, or a memory for a layer that has none.
        """
        set_lstm_states(self, states)

    @alone
    def reset_lstm_states(self) -> None:
        """Resets the states that layers carry from call to call, such as the memory of recurrent layers."""
        self._reset_carried()
        self.arena.keep_state()  # what a refused step restores

    def _reset_carried(self) -> None:
        for spec in self.arena.tensors:
            if spec.kind == "carried":
                self.kernels.array.copy(np.full(spec.size, spec.initial, np.float32), self.arena.values(spec))

    @alone
    def smoother(self) -> tuple[np.ndarray, np.ndarray]:
        """Smooths the training steps since the last call: states and outputs, given all observations.

        A step has one sample of one time step. The states of each `SLSTM` are smoothed from the last step to the first
        (`get_lstm_states` returns them). The `SLinear` after the last `SLSTM`, at the end of the network, computes the
        outputs from the smoothed h. Afterwards the memory is 0, and a new record begins. Without a step since the last
        call, the states of that call are used again.

        Returns:
            (mu, var): means and variances of the outputs, flat, time step by time step; those of h without an
            `SLinear`. If `num_samples` is larger than the number of steps, the rest are outputs of `SLinear` for h = 0.

        Raises:
            RuntimeError: there is no SLSTM, or no step was recorded; or an `SLinear` is not right after the last SLSTM,
                or not at the end of the network.

        Source: Rauch, Tung & Striebel (1965); cuTAGI.
        """
        outputs = smooth(self, self.num_samples or 0)
        self.reset_lstm_states()
        self._smoothed_outputs = outputs
        return self.get_outputs_smoother()

    def get_outputs_smoother(self) -> tuple[np.ndarray, np.ndarray]:
        """Copies of the results of the last `smoother`.

        Raises:
            RuntimeError: there was none.
        """
        if self._smoothed_outputs is None:
            raise RuntimeError("get_outputs_smoother() returns the result of smoother(): call that first")
        mu, var = self._smoothed_outputs
        return mu.copy(), var.copy()

    # -- device and threads -----------------------------------------------------------------------------------

    @alone
    def to_device(self, device: str) -> None:
        """Moves parameters, deltas, statistics and the last output: to "cpu", "cuda" (current GPU) or "cuda:<index>".

        On a GPU everything stays there; what you read is copied to the host. After a move, `backward` needs a new
        forward pass first.

        Raises:
            ValueError: unknown device. RuntimeError: a device that this installation cannot use; says why.
            MemoryError: a device without room for the parameters and their deltas; the network stays where it is.
        """
        move(self, device)

    @property
    def device(self) -> str:
        return self._device

    @device.setter
    def device(self, value: str) -> None:
        self.to_device(value)

    # -- names of pytagi --------------------------------------------------------------------------------------

    def preinit_layer(self) -> None:
        """Does nothing: parameters exist from the start."""

    def params_to_device(self) -> None:
        """Does nothing: parameters are on the device."""

    def params_to_host(self) -> None:
        """Does nothing: values are copied to the host when they are read."""

    def output_to_host(self) -> None:
        """Does nothing: the output is copied to the host when it is read."""

    def delta_z_to_host(self) -> None:
        """Does nothing: deltas are copied to the host when they are read."""

    def set_threads(self, num_threads: int) -> None:
        """Threads of all CPU work of this process, BLAS included."""
        # Here, so that `import pytagi_ddp` stays fast.
        from pytagi_ddp.kernels.cpu.runtime.threads import set_threads

        set_threads(num_threads)

    @property
    def z_buffer_size(self) -> int:
        """Values that the widest layer holds for the last batch."""
        return max(layer.get_max_num_states() for _, layer in self.named_layers()) * self.z_buffer_block_size

    @property
    def z_buffer_block_size(self) -> int:
        """Batch size of the last forward pass."""
        return self.output_z_buffer.block_size if self.output_z_buffer.size else 0

    # -- copies -----------------------------------------------------------------------------------------------

    @alone
    def __getstate__(self) -> dict:
        state = self.__dict__.copy()
        for name in ("kernels", "arena", "passes", "_express", "_one_thread"):
            del state[name]
        state.pop("_make_arena", None)
        step = Step()
        step.continue_as(self.passes)
        # A copy belongs to no DDPSequential.
        return state | {"pending": step, "schedule": self.schedule, "trainer": None}

    def __setstate__(self, state: dict) -> None:
        state = writable(state)
        step, schedule = state.pop("pending"), state.pop("schedule", None)
        state.pop("_hooks", None)  # of earlier versions
        for name in ("training", "first_layer", "input_state_update"):  # as earlier versions call them
            if name in state:
                state[f"_{name}"] = state.pop(name)
        self.__dict__.update(state)
        for layer in self.layers:
            layer._claim(self)
        self.passes = Passes(self)
        self.passes.continue_as(step)
        self._attach()
        self.passes.use_schedule(schedule)


refuse_assignment(Sequential, ("layers",), "make a new network")
refuse_assignment(Sequential, ("z_buffer_size", "z_buffer_block_size"), "it follows from the last forward pass")
