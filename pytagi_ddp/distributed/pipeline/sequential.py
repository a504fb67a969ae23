"""Training in a pipeline: every rank holds some layers, and micro-batches go through all of them."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.distributed.communicator import Communicator, SerialCommunicator
from pytagi_ddp.distributed.config import DDPConfig
from pytagi_ddp.distributed.exchange import EveryStep, pool_statistics
from pytagi_ddp.distributed.pipeline.balance import balance_by_products, check_balance
from pytagi_ddp.distributed.pipeline.schedule import (
    Action,
    Timeline,
    frames_in_flight,
    make_schedule,
    micro_batch_rows,
)
from pytagi_ddp.distributed.pipeline.stage import Observe, Stage
from pytagi_ddp.distributed.sharded import ShardedNetwork
from pytagi_ddp.distributed.trained_on_ranks import TrainedOnRanks
from pytagi_ddp.distributed.wire import reduction
from pytagi_ddp.files import atomic_write, read_file
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn import architecture as whole
from pytagi_ddp.nn import persistence
from pytagi_ddp.nn.data_struct import BaseDeltaStates, BaseHiddenStates
from pytagi_ddp.nn.deferred import drawn
from pytagi_ddp.nn.persistence import StateDict
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.slices import TensorSlice, whole_tensors
from pytagi_ddp.nn.state import Array
from pytagi_ddp.nn.update_bn import StatisticsChange, take_statistics
from pytagi_ddp.nn.validate import flat_float32


class PipelineSequential(TrainedOnRanks, ShardedNetwork):
    """A `Sequential` cut into stages, one on each rank, that learns from micro-batches on their way through.

        net = PipelineSequential(model, n_microbatches=8)
        updater = OutputUpdater(net.stage.device)

        def observe(states, rows, deltas):  # called where the outputs are, for each micro-batch
            updater.update(states, y[rows], var_y, deltas)

        net.forward_backward(x, observe)
        net.step()

    A batch of n samples is cut into M micro-batches (n, if there are fewer samples) that differ by one sample at most.
    With g_m, h_m the batch sums of micro-batch m, at parameters that stay as they are until the step,

        g = sum_m g_m           h = sum_m h_m           cap factor c(n)

    to the last bit what one process makes of the same micro-batches with `DDPSequential.no_sync`, BatchNorm2d and its
    running statistics included. BatchNorm2d normalises by each micro-batch, so results of one pass with the whole batch
    are other ones.

    Construction makes the network of every rank that of rank 0, and `model` becomes this rank's stage: all other layers
    are given up, and so is their memory. Keys (`Linear.7`) stay those of the whole network. One that was made inside
    `nn.deferred_init` is drawn layer by layer, as it would have been, and no rank ever holds more than its stage.

    Per sample and cut of u units, 8 u bytes go forward (means and variances; 12 u behind an activation, whose Jacobian
    goes along) and 8 u bytes come back; those of GPUs through host memory. A layer reads its weights, and adds to their
    sums, once for each micro-batch: where it has many of them for few units, small micro-batches cost time. Of
    ResNet18, an image takes twice as long in the second of two stages in micro-batches of 4 as in those of 32
    (`benchmarks.micro_batches`). S stages that take equally long do nothing in (S - 1) / (M + S - 1) of the
    time. "1F1B" keeps the activations of at most S - s micro-batches in stage s, "GPipe" those of all M;
    `recompute=True` those of one, and the inputs of the others, for one more forward pass each.

    With a mesh of (S, D) ranks, `init_device_mesh((S, D), ("pipe", "data"))`, D pipelines learn from batches of their
    own: replicas of a stage add their deltas as `DDPSequential` does, with the meaning of its `average`.

    Which ranks have to call a method together: those of a pipeline `forward_backward`, `forward`, `backward`,
    `predict`, `state_dict`; all ranks the constructor, `step` and `save`. `load` and `load_state_dict` are local, and
    to be called everywhere.

    Args:
        model: the network, of the same layers on every rank; without layers that carry a memory from call to call.
        config: how to communicate; None: `DDPConfig()`. `buckets` have to be 1.
        average: aggregation of the deltas of replicas; without a mesh, it makes no difference.
        n_microbatches: M.
        schedule: "1F1B" or "GPipe". With "GPipe", the loop of an ordinary network is a step too: `net(x)`,
            `updater.update(net.output_z_buffer, y, var_y, net.input_delta_z_buffer)`, `net.backward()`, `net.step()`.
        balance: layers of each stage, see `balance_by_time` and `balance_by_size`; that of rank 0 counts. None: stages
            with about as many products each.
        mesh: of `init_device_mesh`, with a dimension "pipe", and "data" for replicas. None: all ranks are one pipeline.
        recompute: see above.

    Attributes:
        stage: the layers of this rank, a `Sequential`. is_first, is_last: whether they are the first or last ones.
        balance: layers of each stage.
        communicator: of all ranks. pipe_group, data_group: of the stages of this pipeline; of this stage's replicas.
        output_z_buffer, input_delta_z_buffer: outputs of the whole batch and deltas there; empty but on the last stage,
            where an `OutputUpdater` does nothing.
        stop_requested: whether a rank had called `request_stop` before the last step.
        timeline: when this stage did what in the last batch; on a GPU, when it was queued.

    Raises:
        ValueError: another architecture or other options on some rank; a stage without a layer; options out of range.
        TypeError: no `Sequential`, or no `DDPConfig`.

    Source: Huang et al. (2019), GPipe; Narayanan et al. (2019), PipeDream. Interface: `torch.distributed.pipelining`.
    """

    def __init__(
        self,
        model: Sequential,
        config: DDPConfig | None = None,
        average: bool = True,
        *,
        n_microbatches: int = 8,
        schedule: str = "1F1B",
        balance: Sequence[int] | None = None,
        mesh: Any = None,
        recompute: bool = False,
    ):
        super().__init__(model, DDPConfig() if config is None else config, average)
        c = self.config
        c.check(model.device, 1, False)
        if c.buckets > 1:
            raise ValueError(f"buckets={c.buckets} is for DDPSequential: a stage exchanges its deltas in one")
        make_schedule(1, operator.index(n_microbatches), schedule)  # raises what is wrong with them
        _refuse_carried(model)
        self.n_microbatches, self.schedule = n_microbatches, schedule
        options = {"n_microbatches": n_microbatches, "schedule": schedule, "recompute": recompute}
        options["deferred_init"] = model.is_deferred
        self._connect(None, options | {"wire_dtype": c.wire_dtype, "mesh": mesh and tuple(mesh.shape)})
        self.pipe_group, self.data_group = _groups(self.communicator, mesh)
        stages = self.pipe_group.world_size
        balance = self.communicator.broadcast_object(balance)
        count = len(model.layers)
        self.balance = balance_by_products(model, stages) if balance is None else check_balance(balance, count, stages)
        self._architecture, self.num_parameters = whole.architecture(model), model.num_parameters
        self._inputs = model.in_shape.size
        self._outputs = model.out_shape
        start = sum(self.balance[: self.pipe_group.rank])
        stop = start + self.balance[self.pipe_group.rank]
        self._take_from_rank_0(start, stop)
        taken = 3 if start and model.layers[start - 1].gives_jacobian else 2
        model.keep_layers(start, stop)
        model.materialize()
        in_flight = frames_in_flight(stages, self.pipe_group.rank, n_microbatches, schedule)
        self._stage = Stage(model, self.pipe_group, taken, in_flight, recompute)
        pool_statistics(model)
        self._exchange = EveryStep(self.data_group, model, average, reduction(self.data_group, model, c.wire_dtype))
        model.trainer = self
        self._stop_requested = False
        self._adds = False  # whether the next batch adds to the deltas that wait
        self._under_way = False  # whether `forward` came, and `backward` has not

    def _take_from_rank_0(self, start: int, stop: int) -> None:
        """Parameters and statistics; a network that is not drawn yet is drawn layer by layer, and none kept in vain."""
        model, broadcast = self.model, self.communicator.broadcast
        broadcast(model.arena.statistics)
        if not model.is_deferred:
            broadcast(model.arena.theta)
            return
        own = {leaf for layer in model.layers[start:stop] for leaf in layer.leaves()}
        array = model.kernels.array
        for leaf in drawn(model.arena.leaves):
            for row in leaf.parameters.rows[:2] if leaf.parameters else ():
                there = array.place(row)
                broadcast(there)
                row[:] = array.to_host(there)
            if leaf not in own:
                leaf.parameters = None

    @property
    def stage(self) -> Sequential:
        return self.model

    @property
    def is_first(self) -> bool:
        return self._stage.is_first

    @property
    def is_last(self) -> bool:
        return self._stage.is_last

    @property
    def output_z_buffer(self) -> BaseHiddenStates:
        return self._stage.outputs

    @output_z_buffer.setter
    def output_z_buffer(self, states: BaseHiddenStates) -> None:
        self._stage.outputs = states

    @property
    def input_delta_z_buffer(self) -> BaseDeltaStates:
        return self._stage.deltas

    @input_delta_z_buffer.setter
    def input_delta_z_buffer(self, deltas: BaseDeltaStates) -> None:
        self._stage.deltas = deltas

    @property
    def timeline(self) -> Timeline:
        return self._stage.timeline

    # -- training ---------------------------------------------------------------------------------------------

    def forward_backward(
        self, x: ArrayLike | None, observe: Observe, var_x: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The passes of a batch, forward and back, by the schedule.

        Args:
            x: the batch, on the first stage; the others may have None, and read nothing else.
            observe: called on the last stage as ``observe(states, rows, deltas)`` for each micro-batch: fills `deltas`
                from the observations ``y[rows]`` and the outputs `states`, which `OutputUpdater.update` takes.
            var_x: variances of the inputs, as of `Sequential.forward`.

        Returns:
            (mu, var): means and variances of the outputs, flat, on the last stage; empty arrays on the others.

        Raises:
            RuntimeError: in evaluation mode, or another PipelineSequential was made of the stage.
            ValueError: sizes that do not fit, or values that are not finite; the job ends, as others wait.
        """
        self._check_owner("forward_backward")
        if not self.stage.training:
            raise RuntimeError("forward_backward() is for training: call train() first, or predict()")
        self._exchange.before_forward()
        with held_back(), self._adding():
            rows = self._begin("forward_backward", x, var_x)
            self._stage.run(self._actions(len(rows)), observe)
            self._stage.finish()
        return self.get_outputs()

    def forward(
        self, mu_x: ArrayLike | BaseHiddenStates | None, var_x: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """All forward passes of a batch; arguments and results are those of `forward_backward`.

        Raises:
            RuntimeError: in training mode with another schedule than "GPipe".
        """
        self._check_owner("forward")
        if self.stage.training and self.schedule != "GPipe":
            raise RuntimeError(
                f"net(x) in training mode is for schedule='GPipe', this one is {self.schedule!r}: use "
                "forward_backward(x, observe)"
            )
        self._exchange.before_forward()
        with held_back():
            rows = self._begin("forward", mu_x, var_x)
            self._stage.run([Action("F", m) for m in range(len(rows))])
            self._stage.finish()
        self._under_way = self.stage.training
        return self.get_outputs()

    __call__ = forward  # type: ignore[assignment]  # which takes None, too

    def backward(self) -> None:
        """All backward passes behind `forward`, from `input_delta_z_buffer` of the last stage.

        Raises:
            RuntimeError: no forward pass in training mode came before. ValueError: deltas of another batch size.
        """
        self._check_owner("backward")
        if not self._under_way:
            raise RuntimeError("backward() needs a forward pass in training mode before it (see train())")
        self._under_way = False
        states, deltas = self.output_z_buffer, self.input_delta_z_buffer
        if self.is_last and (deltas.block_size, deltas.size) != (states.block_size, states.size):
            held = f"{deltas.block_size} x {deltas.actual_size}"
            raise ValueError(f"input_delta_z_buffer holds {held} deltas, the batch has {states.block_size} samples")
        with held_back(), self._adding():
            self._stage.run([Action("B", m) for m in range(len(self._stage.rows))])
            self._stage.finish()

    def step(self) -> None:
        """Adds the deltas of all replicas of this stage and applies them; collective over all ranks.

        Raises:
            RuntimeError: inside `no_sync`.
            FloatingPointError: a delta that is not finite, on some rank; its parameter was not changed. Every rank
                raises it, and it names the rank and the layer.
        """
        self._check("step")
        with held_back():
            problem = None
            try:
                self._exchange.step(False)
            except FloatingPointError as error:
                problem = str(error)
            self._adds = False
            flags = np.array([problem is not None, self._stop], np.float32)
            self.communicator.all_reduce(flags)
            self._stop_requested = bool(flags[1] > 0)
            if flags[0] > 0:
                self._raise_alike(problem)

    def _raise_alike(self, problem: str | None) -> NoReturn:
        problems = self.communicator.all_gather_object((self.pipe_group.rank, problem))
        rank, stage, text = next((rank, s, text) for rank, (s, text) in enumerate(problems) if text is not None)
        raise FloatingPointError(f"rank {rank}, stage {stage}: {text}")

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Deltas of the batches inside, and of the next one, add up until the next step.

            with net.no_sync():
                net.forward_backward(x_1, observe_1)
            net.forward_backward(x_2, observe_2)
            net.step()

        The step learns from all of them.
        """
        before, self._in_no_sync = self._in_no_sync, True
        try:
            yield
        finally:
            self._in_no_sync = before

    @contextmanager
    def _adding(self) -> Iterator[None]:
        """Around the backward passes of a batch."""
        if not self._adds:
            self.stage.pending.drop()
        with self.stage.accumulate():
            yield
        self._adds = self._in_no_sync

    def _actions(self, micro_batches: int) -> list[Action]:
        return make_schedule(self.pipe_group.world_size, micro_batches, self.schedule)[self.pipe_group.rank]

    def _begin(
        self, kind: str, x: ArrayLike | BaseHiddenStates | None, var_x: ArrayLike | None, batch_size: int = 0
    ) -> list[slice]:
        """The rows of the micro-batches: `n_microbatches` of them, or parts of `batch_size` samples."""
        samples, variances = None, None
        if self.is_first:
            if x is None or isinstance(x, BaseHiddenStates):
                raise TypeError(f"{kind}() on the first stage needs an array of inputs, got {type(x).__name__}")
            mu = flat_float32(x, "x")
            if mu.size == 0 or mu.size % self._inputs:
                raise ValueError(f"x holds {mu.size} values, not a whole number of samples of {self._inputs} inputs")
            samples = mu.reshape(-1, self._inputs)
            variances = None if var_x is None else flat_float32(var_x, "var_x", mu.size).reshape(samples.shape)

        def cut(count: int) -> list[slice]:
            if not batch_size:
                return micro_batch_rows(count, self.n_microbatches)
            return [slice(a, min(count, a + batch_size)) for a in range(0, count, batch_size)]

        return self._stage.begin(kind, samples, variances, cut)

    def get_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        states = self.output_z_buffer
        return np.array(states.mu_a), np.array(states.var_a)

    def update_bn(self, loader: Iterable[Any], num_batches: int | None = None) -> list[StatisticsChange]:
        """Sets the running statistics of every BatchNorm2d to the exact ones of the batches of all pipelines.

        Collective; see `nn.update_bn`. Batches are normalised by micro-batches, as in training.

        Args:
            loader: training batches, inputs or (inputs, ...): as many on every rank of a pipeline, those of its first
                stage count. num_batches: how many of them to use; None: all.

        Returns:
            For each BatchNorm2d of the whole network, how far its running statistics were off.
        """
        self._check_owner("update_bn")
        self._exchange.before_statistics()

        def run(x: ArrayLike) -> None:
            rows = self._begin("update_bn", x, None)
            self._stage.run([Action("F", m) for m in range(len(rows))])
            self._stage.finish()

        self._under_way = False
        changes = take_statistics(self.stage, loader, num_batches, self.data_group.all_reduce, run)
        return [change for stage in self.pipe_group.all_gather_object(changes) for change in stage]

    @contextmanager
    def join(self) -> Iterator[None]:
        """`DDPSequential.join` for pipelines with different numbers of batches; collective over all ranks."""
        yield
        while True:
            self.step()
            pooled = self._exchange.pooled
            if pooled is None or not pooled[0] > 0:
                return

    @property
    def stop_requested(self) -> bool:
        return self._stop_requested

    def timelines(self) -> list[Timeline]:
        """`timeline` of all stages of this pipeline, for `schedule.draw` and `schedule.bubble`; collective.

        Clocks of ranks on several nodes differ; on one node they are the same.
        """
        return self.pipe_group.all_gather_object(self.timeline)

    # -- modes and results ------------------------------------------------------------------------------------

    def predict(
        self, x: ArrayLike | None, batch_size: int = 256, var_x: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`Sequential.predict`, through all stages; collective over this pipeline, and every rank of it has the result.

        Args:
            x, var_x: on the first stage, as of `Sequential.predict`; the others may have None.
            batch_size: samples on their way between two stages at a time, the same everywhere.
        """
        self._check_owner("predict")
        if batch_size < 1:
            raise ValueError(f"predict needs a batch_size of at least 1, got {batch_size}")
        training = self.stage.training
        self.stage.eval()
        try:
            with held_back():
                rows = self._begin("predict", x, var_x, batch_size)
                self._stage.run([Action("F", m) for m in range(len(rows))])
                self._stage.finish()
        finally:
            if training:
                self.stage.train()
        shape, n = self._outputs, rows[-1].stop
        one = shape.image or shape.sequence or (shape.size,)
        moments = np.empty((2, n, *one), np.float32)
        if self.is_last:
            moments[0], moments[1] = (a.reshape(n, *one) for a in self.get_outputs())
        self.pipe_group.broadcast(moments, self.pipe_group.world_size - 1)
        return moments[0], moments[1]

    def state_dict(self) -> StateDict:
        """Parameters and running statistics of all stages, on every rank; collective over this pipeline."""
        parts = self.pipe_group.all_gather_object(dict(self.stage.state_dict()))
        return StateDict({key: values for part in parts for key, values in part.items()})

    def load_state_dict(self, state_dict: dict) -> None:
        """Takes what belongs to this stage of the state dict of a whole network, the same on every rank.

        Raises:
            KeyError, ValueError: as `Sequential.load_state_dict`.
        """
        elsewhere = json.loads(self._architecture).keys() - dict(self.stage.named_layers()).keys()

        def place(key: str) -> str:
            return re.sub(r"^(\w+?)Cuda(?=\.)|\.(running|carried)$", r"\1", key)

        self.stage.load_state_dict({k: v for k, v in state_dict.items() if place(k) not in elsewhere})

    def save(self, filename: str | Path) -> None:
        """Writes the file that `Sequential.save` of the whole network would write, on rank 0; collective.

        Raises:
            ValueError: values that are NaN or infinite, on every rank.
        """
        data = self.to_bytes()
        if self.rank == 0:
            atomic_write(filename, data)

    def load(self, filename: str | Path) -> None:
        """Reads this stage from a file of `Sequential.save` of the whole network, or of `save`; on every rank."""
        contents = persistence.read(read_file(filename), str(filename))
        persistence.take_part(self.stage, contents, self._architecture)

    # -- checkpoints, see `ShardedNetwork` --------------------------------------------------------------------

    def slices(self) -> list[TensorSlice]:
        """The tensors of this stage, whole; of its replicas, the first saves them."""
        saved = self.data_group.rank == 0
        return [part._replace(saved=saved) for part in whole_tensors(self.stage)]

    @property
    def architecture(self) -> str:
        return self._architecture

    def to_bytes(self, extra: dict[str, str] | None = None) -> bytes:
        """The file of `save` on rank 0, nothing elsewhere; errors are those of `save`."""
        mine: dict[str, np.ndarray] | ValueError
        try:
            mine = persistence.tensors(self.stage)
        except ValueError as error:
            mine = error
        arrays: dict[str, np.ndarray] = {}
        for part in self.pipe_group.all_gather_object(mine):
            if isinstance(part, ValueError):
                raise part
            arrays.update(part)
        return persistence.packed(arrays, self._architecture, extra) if self.rank == 0 else b""

    def to_host(self, array: Array) -> np.ndarray:
        return self.stage.kernels.array.to_host(array)

    def take(self, values: list[tuple[TensorSlice, np.ndarray]]) -> None:
        for part, new in values:
            self.stage.kernels.array.copy(new, part.array)


def _refuse_carried(model: Sequential) -> None:
    for key, leaf in model.named_leaves():
        if any(tensor.kind == "carried" for tensor in leaf.state_tensors()):
            raise ValueError(
                f"{key} carries a memory from call to call, which micro-batches under way at the same time would mix: "
                "a pipeline takes no such layer (an LSTM with seq_len=1)"
            )


def _groups(communicator: Communicator, mesh: Any) -> tuple[Communicator, Communicator]:
    """The ranks of the stages of this pipeline, and those of the replicas of this stage.

    Raises:
        ValueError: a mesh without "pipe", with other dimensions than "pipe" and "data", or of other ranks.
    """
    if mesh is None:
        return communicator, SerialCommunicator()
    names = tuple(mesh.names)
    if set(names) not in ({"pipe"}, {"pipe", "data"}):
        raise ValueError(f"the mesh of a pipeline has the dimensions 'pipe' and 'data', or 'pipe' alone, got {names}")
    ranks = math.prod(mesh.shape)
    if ranks != communicator.world_size:
        raise ValueError(f"a mesh of {tuple(mesh.shape)} is for {ranks} ranks, there are {communicator.world_size}")
    return mesh["pipe"], mesh["data"] if "data" in names else SerialCommunicator()
