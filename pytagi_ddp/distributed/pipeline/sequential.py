"""Pipeline parallelism: every rank has some layers, and micro-batches pass through all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.distributed.communicator import Communicator, SerialCommunicator
from pytagi_ddp.distributed.config import DDPConfig, choose_strategy
from pytagi_ddp.distributed.device_mesh import DeviceMesh
from pytagi_ddp.distributed.engine.debug import NonFiniteError
from pytagi_ddp.distributed.engine.error_propagation import errors_of_all_ranks, raise_on_all_ranks
from pytagi_ddp.distributed.exchange import Options
from pytagi_ddp.distributed.pipeline.balance import balance_by_products, check_balance
from pytagi_ddp.distributed.pipeline.files import StagedNetwork
from pytagi_ddp.distributed.pipeline.schedule import (
    Action,
    Timeline,
    forward_actions,
    frames_in_flight,
    make_schedule,
    micro_batch_rows,
)
from pytagi_ddp.distributed.pipeline.stage import Observe, Stage
from pytagi_ddp.distributed.trained_on_ranks import TrainedOnRanks
from pytagi_ddp.distributed.wrapper import attribute_of, collective
from pytagi_ddp.nn.core.data_struct import BaseHiddenStates
from pytagi_ddp.nn.core.prior import drawn
from pytagi_ddp.nn.files.architecture import architecture, sizes
from pytagi_ddp.nn.run.network_input import moments_of_samples
from pytagi_ddp.nn.run.rebuild import keep_layers
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.tools.update_bn import (
    StatisticsChange,
    batches_of,
    check_num_batches,
    take_statistics,
    unfrozen_norms,
)
from pytagi_ddp.validate import as_bools, check_batch_size, check_predictions


class PipelineSequential(StagedNetwork, TrainedOnRanks):
    """A `Sequential` divided into stages, one on each rank, through which micro-batches pass one after the other.

        net = PipelineSequential(model, n_microbatches=8)
        updater = OutputUpdater(net.stage.device)

        def observe(states, rows, deltas):  # called on the last stage, for each micro-batch
            updater.update(states, y[rows], var_y, deltas)

        net.forward_backward(x, observe)
        net.step()

    A batch of n samples is divided into M micro-batches (or n, if n < M), whose sizes differ by at most one. With the
    batch sums g_m, h_m of micro-batch m, and parameters that do not change until the step,

        g = sum_m g_m           h = sum_m h_m           cap factor c(n)

    The result has the bits of one process with the same micro-batches and `DDPSequential.no_sync`, including the
    running statistics of BatchNorm2d, which normalises by each micro-batch.

    The constructor gives every rank the parameters of rank 0, and reduces `model` to the stage of this rank. Keys
    (`Linear.7`) are those of the whole network. A network made inside `nn.deferred_init` is drawn layer by layer, so
    that no rank ever has more than its stage.

    For each sample, a boundary with u units sends 8 u bytes forward (12 u after an activation, with its Jacobian) and
    8 u bytes back; on GPUs, through host memory. S equal stages are idle for (S - 1) / (M + S - 1) of the time.
    "1F1B" keeps the activations of at most S - s micro-batches in stage s, "GPipe" those of all M. `recompute=True`
    keeps those of one, and the inputs of the others, and makes one more forward pass for each.

    With a mesh of (S, D) ranks, `init_device_mesh((S, D), ("pipe", "data"))`, there are D pipelines, each with its own
    batches: replicas of a stage add their deltas as in `DDPSequential`, and `average` means the same as there. A mesh
    of the ranks of a group (`init_device_mesh((2,), ("pipe",), group)`) makes a pipeline of these ranks alone.

    `forward_backward`, `forward`, `backward`, `predict` and `state_dict` are collective over the ranks of a pipeline;
    the constructor, `step`, `update_bn`, `save`, `load` and `load_state_dict` over all ranks of the job. After an
    exception in the middle of a pass, further calls raise an error.

    Args:
        model: the network, of the same layers on every rank; without layers that carry a memory from call to call.
        config: options of the communication; None: `DDPConfig()`. `buckets` have to be 1.
        average: aggregation of the deltas of replicas; without replicas it has no effect.
        n_microbatches: M.
        schedule: "1F1B" or "GPipe". With "GPipe", the loop of an ordinary network works, too.
        balance: number of layers of each stage, see `balance_by_time` and `balance_by_size`; that of rank 0 is used.
            None: stages with about the same number of products.
        mesh: a result of `init_device_mesh`, with a dimension "pipe", and "data" for replicas. None: all ranks are one
            pipeline.
        recompute: see above.

    Attributes:
        stage: the layers of this rank, a `Sequential`. is_first, is_last: whether they are the first or last ones.
        n_microbatches, schedule: as given. balance: layers of each stage.
        communicator: that of all ranks. pipe_group: that of the stages of this pipeline. data_group: that of the
            replicas of this stage.
        output_z_buffer, input_delta_z_buffer: outputs of the whole batch, and their deltas, on the last stage. On the
            other stages they are empty, and an `OutputUpdater` does nothing.
        num_parameters: number of parameters of the whole network.
        stop_requested: whether a rank had called `request_stop` before the last step.
        timeline: the actions of this stage in the last batch and their times; on a GPU, when they were queued.

    Raises:
        ValueError: another architecture or other options on some rank; a stage without a layer; options out of range.
        TypeError: not a `Sequential`, `DDPConfig` or mesh.

    Source: Huang et al. (2019), GPipe; Narayanan et al. (2019), PipeDream. Interface: `torch.distributed.pipelining`.
    """

    num_parameters = n_microbatches = 0
    schedule = ""
    balance: Sequence[int] = ()
    is_first: bool = attribute_of("_stage", "is_first")
    is_last: bool = attribute_of("_stage", "is_last")
    output_z_buffer = attribute_of("_stage", "outputs")
    input_delta_z_buffer = attribute_of("_stage", "deltas")
    _settled = (
        *TrainedOnRanks._settled,
        *("n_microbatches", "schedule", "balance", "mesh", "recompute"),
        *("pipe_group", "data_group", "is_first", "is_last"),
    )

    def __init__(
        self,
        model: Sequential,
        config: DDPConfig | None = None,
        average: bool = True,
        *,
        n_microbatches: int = 8,
        schedule: str = "1F1B",
        balance: Sequence[int] | None = None,
        mesh: DeviceMesh | None = None,
        recompute: bool = False,
    ):
        super().__init__(model, DDPConfig() if config is None else config, average)
        (recompute,) = as_bools("PipelineSequential", recompute=recompute)
        c = self.config
        given = Options(c, model.device, self.average)
        strategy = choose_strategy(given)
        if not isinstance(mesh, DeviceMesh | None):
            raise TypeError(f"mesh has to be one of init_device_mesh, got {type(mesh).__name__}")
        if c.buckets > 1:
            raise ValueError(f"buckets={c.buckets} is for DDPSequential: a stage exchanges its deltas in one")
        make_schedule(1, n_microbatches, schedule)  # raises errors of these
        _refuse_carried(model)
        self.n_microbatches, self.schedule = n_microbatches, schedule
        options = {"n_microbatches": n_microbatches, "schedule": schedule, "recompute": recompute}
        options["deferred_init"] = model.arena.deferred
        options["mesh"] = mesh and mesh.shape
        self._connect(None if mesh is None else mesh.communicator, options)
        self.pipe_group, self.data_group = _groups(self.communicator, mesh)
        stages = self.pipe_group.world_size
        balance = self.communicator.broadcast_object(balance)
        count = len(model.layers)
        self.balance = balance_by_products(model, stages) if balance is None else check_balance(balance, count, stages)
        self._architecture, self._sizes = architecture(model), sizes(model)
        self.num_parameters = model.num_parameters
        self._in_shape = model.in_shape
        self._outputs = model.out_shape
        start = sum(self.balance[: self.pipe_group.rank])
        stop = start + self.balance[self.pipe_group.rank]
        self._take_from_rank_0(start, stop)
        taken = 3 if start and model.layers[start - 1].gives_jacobian else 2
        keep_layers(model, start, stop)
        model.materialize()
        in_flight = frames_in_flight(stages, self.pipe_group.rank, n_microbatches, schedule)
        self._stage = Stage(model, self.pipe_group, taken, in_flight, recompute)
        self._exchange = strategy(self.data_group, model, given)
        model.trainer = self
        self._stop_requested = False
        self._under_way = False  # whether `forward` was called, and `backward` not yet
        self._made = True

    def _take_from_rank_0(self, start: int, stop: int) -> None:
        """Takes parameters and statistics of rank 0, and keeps this stage; deferred layers are drawn one by one."""
        model, broadcast = self.model, self.communicator.broadcast
        broadcast(model.arena.statistics)
        if not model.arena.deferred:
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
    def timeline(self) -> Timeline:
        return self._stage.timeline

    # -- training ---------------------------------------------------------------------------------------------

    @collective
    def forward_backward(
        self, x: ArrayLike | None, observe: Observe | None, var_x: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The forward and backward passes of a batch, in the order of the schedule.

        Args:
            x: the batch, on the first stage, maybe without samples; the other stages ignore it, and may pass None.
            observe: a function that the last stage calls as ``observe(states, rows, deltas)`` for each micro-batch, to
                fill `deltas` from the observations ``y[rows]`` and the outputs `states`, as `OutputUpdater.update`
                does. Other stages may pass None.
            var_x: variances of the inputs, as in `Sequential.forward`.

        Returns:
            (mu, var): means and variances of the outputs, flat, on the last stage; empty arrays on the others.

        Raises:
            RuntimeError: in evaluation mode; another PipelineSequential now has the network; an earlier pass was
                interrupted.
            ValueError: sizes that do not fit, or values that are not finite; the job ends, as other ranks wait.
            TypeError: `observe` is not a function on the last stage; the job ends, too.
        """
        self._begin("forward_backward", in_no_sync=True)
        if not self.stage.training:
            raise RuntimeError("forward_backward() is for training: call train() first, or predict()")
        if self.is_last and not callable(observe):
            raise TypeError(f"forward_backward() on the last stage needs a function observe, got {observe!r:.50}")
        with self._adding():
            self._pass("forward_backward()", x, var_x, self._actions, observe)
        return self.get_outputs()

    @collective
    def forward(
        self, mu_x: ArrayLike | BaseHiddenStates | None, var_x: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """All forward passes of a batch; arguments and results are those of `forward_backward`.

        Raises:
            RuntimeError: in training mode with another schedule than "GPipe".
        """
        self._begin("forward", in_no_sync=True)
        if self.stage.training and self.schedule != "GPipe":
            raise RuntimeError(
                f"net(x) in training mode is for schedule='GPipe', this one is {self.schedule!r}: use "
                "forward_backward(x, observe)"
            )
        mode = "training" if self.stage.training else "evaluation"
        self._pass(f"forward() in {mode} mode", mu_x, var_x)
        self._under_way = self.stage.training
        return self.get_outputs()

    __call__ = forward  # type: ignore[assignment]  # also takes None

    @collective
    def backward(self) -> None:
        """All backward passes after `forward`, from `input_delta_z_buffer` of the last stage.

        Raises:
            RuntimeError: there was no forward pass in training mode before, or the mode or the parameters have changed
                since; raised on every rank. ValueError: deltas of another batch size.
        """
        self._begin("backward", in_no_sync=True)
        if not (self._under_way and self.stage.training):
            raise RuntimeError(
                "backward() needs a forward pass in training mode before it, and training mode itself (see train()); "
                "no step, and no other change of parameters, may come between them"
            )
        self._under_way = False
        if self.is_last:
            states = self.output_z_buffer
            self.input_delta_z_buffer.check(states.block_size, states.actual_size)
        with self._adding():
            self._stage.run([Action("B", m) for m in range(len(self._stage.rows))])

    @collective
    def step(self) -> None:
        """Adds the deltas of all replicas of this stage and applies them; collective over all ranks.

        Raises:
            RuntimeError: inside `no_sync`; or the deltas at the outputs wait for `backward` (raised on every rank of
                the pipeline).
            FloatingPointError: a delta is not finite on some rank; no rank has changed. Raised on every rank; names the
                rank and the layer.
        """
        self._begin("step")
        self._refuse_unread_deltas()
        self._under_way = False
        self.stage.arena.agree = lambda: self._agree(self.stage.arena.refusal())
        try:
            self._exchange.step(False)
        except NonFiniteError as error:  # of the replicas of this stage; other stages already wait in `_agree`
            self._agree(error)

    def _agree(self, problem: FloatingPointError | None) -> None:
        """Refuses a step on all ranks, before any change, if one of them has a problem; shares requests to stop."""
        flags = np.array([problem is not None, self._stop], np.float32)
        self.communicator.all_reduce(flags)
        self._stop_requested = bool(flags[1] > 0)
        if flags[0] > 0:
            self.stage.arena.undo_step()
            self._raise_alike(None if problem is None else str(problem))

    def _refuse_unread_deltas(self) -> None:
        """Raises RuntimeError if the deltas at the outputs wait for a backward pass, on every rank of the pipeline."""
        if self._under_way:  # the same on all of them
            with errors_of_all_ranks(self.pipe_group):
                if self.is_last:
                    self.input_delta_z_buffer.refuse_step()

    def parameters_changed(self) -> None:
        super().parameters_changed()
        self._under_way = False

    def deltas_dropped(self) -> None:
        super().deltas_dropped()
        self._under_way = False

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

        The step learns from all of them. If an exception leaves the block, the accumulated deltas are dropped. It has
        to leave the block on all ranks of a pipeline; otherwise stages would differ, and the next pass raises an error.
        """
        before, self._in_no_sync = self._in_no_sync, True
        try:
            yield
        except BaseException:
            self.stage.passes.drop()
            raise
        finally:
            self._in_no_sync = before

    @contextmanager
    def _adding(self) -> Iterator[None]:
        """The context of the backward passes of a batch, whose deltas are added."""
        passes = self.stage.passes
        if not passes.accumulating:
            passes.drop()
        with self.stage.accumulate():
            yield
        passes.accumulating = self._in_no_sync  # for the next batch

    def _actions(self, micro_batches: int) -> list[Action]:
        if not micro_batches:  # of a batch without samples
            return []
        return make_schedule(self.pipe_group.world_size, micro_batches, self.schedule)[self.pipe_group.rank]

    def _pass(
        self,
        kind: str,
        x: ArrayLike | BaseHiddenStates | None,
        var_x: ArrayLike | None = None,
        actions: Callable[[int], list[Action]] = forward_actions,
        observe: Observe | None = None,
        batch_size: int = 0,
    ) -> int:
        """Runs a batch through all stages; returns the number of its samples.

        Args:
            kind: one of `PASSES`. x, var_x, observe: as in `forward_backward`.
            actions: returns the actions of this stage for a number of micro-batches.
            batch_size: size of a micro-batch; 0: there are `n_microbatches`.
        """
        self._under_way = False
        samples, variances = None, None
        if self.is_first:
            if x is None or isinstance(x, BaseHiddenStates):
                raise TypeError(f"{kind} on the first stage needs an array of inputs, got {type(x).__name__}")
            samples, variances = moments_of_samples(x, var_x, "x", self._in_shape)

        def cut(count: int) -> list[slice]:
            if not batch_size:
                return micro_batch_rows(count, self.n_microbatches)
            return [slice(a, min(count, a + batch_size)) for a in range(0, count, batch_size)]

        waiting = self.stage.passes.waiting if self.stage.passes.adds else 0
        rows = self._stage.begin(kind, samples, variances, cut, waiting)
        self._stage.run(actions(len(rows)), observe)
        return rows[-1].stop if rows else 0

    @collective
    def update_bn(self, loader: Iterable[Any] | None, num_batches: int | None = None) -> list[StatisticsChange]:
        """Sets the running statistics of every BatchNorm2d to the exact ones of the batches of all pipelines.

        Collective; see `nn.update_bn`. Batches are normalised by micro-batches, as in training.

        Args:
            loader: on the first stage: training batches, inputs or (inputs, ...). The other stages ignore it, and may
                pass None.
            num_batches: how many of them to use; None: all.

        Returns:
            For each BatchNorm2d of the whole network, the change of its running statistics.

        Raises:
            ValueError, FloatingPointError: as in `nn.update_bn`. Errors of the statistics, and of other frozen
                BatchNorm2d in some pipeline, are raised on every rank.
        """
        self._begin("update_bn", in_no_sync=True)
        check_num_batches(num_batches)
        self._exchange.barrier("update_bn")
        self._compare_norms(self.pipe_group.all_gather_object(unfrozen_norms(self.stage)))

        passing = True

        def batches() -> Iterator[Any]:
            nonlocal passing
            if self.is_first:
                if loader is None:
                    raise TypeError("update_bn() on the first stage needs batches, got None")
                yield from batches_of(loader, num_batches)
                self._pass("update_bn()", np.empty(0))  # tells the other stages that there are no more batches
            else:
                while samples := self._pass("update_bn()", None):
                    yield range(samples)  # these samples have passed this stage
            passing = False

        def run(x: ArrayLike) -> None:
            if self.is_first:
                self._pass("update_bn()", x)

        mine: list[StatisticsChange] = []
        problem = None
        try:
            mine = take_statistics(self.stage, batches(), None, self.data_group.all_reduce, run)
        except Exception as error:
            if passing:  # the other stages are in a pass
                raise
            problem = error
        raise_on_all_ranks(self.pipe_group, problem)
        return [change for part in self.pipe_group.all_gather_object(mine) for change in part]

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

    def withdraw_stop(self) -> None:
        super().withdraw_stop()
        self._stop_requested = False

    def timelines(self) -> list[Timeline]:
        """`timeline` of all stages of this pipeline, for `schedule.draw` and `schedule.bubble`; collective.

        Clocks of ranks on several nodes differ; on one node they are the same.
        """
        return self.pipe_group.all_gather_object(self.timeline)

    # -- modes and results ------------------------------------------------------------------------------------

    @collective
    def predict(
        self, x: ArrayLike | None, batch_size: int = 256, var_x: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`Sequential.predict` through all stages; collective over this pipeline. Every rank of it gets the result.

        Args:
            x, var_x: on the first stage, as in `Sequential.predict`, also without samples; others may pass None.
            batch_size: samples that are sent between two stages at a time, equal on all ranks.
        """
        self._begin("predict", in_no_sync=True)
        check_batch_size(batch_size)
        with self.stage.passes.in_mode(training=False):
            n = self._pass("predict()", x, var_x, batch_size=batch_size)
        shape = self._outputs
        one = shape.extents
        moments = np.empty((2, n, *one), np.float32)
        if self.is_last:
            moments[0], moments[1] = (a.reshape(n, *one) for a in self.get_outputs())
        self.pipe_group.broadcast(moments, self.pipe_group.world_size - 1)
        if self.stage.missing_inputs != "pass":
            check_predictions(*moments)
        return moments[0], moments[1]


def _refuse_carried(model: Sequential) -> None:
    for spec in model.arena.tensors:
        if spec.kind == "carried":
            raise ValueError(
                f"{spec.layer} carries a memory from call to call, which micro-batches under way at the same time "
                "would mix: a pipeline takes no such layer (an LSTM with seq_len=1)"
            )


def _groups(communicator: Communicator, mesh: DeviceMesh | None) -> tuple[Communicator, Communicator]:
    """The ranks of the stages of this pipeline, and those of the replicas of this stage."""
    if mesh is None:
        return communicator, SerialCommunicator()
    if set(mesh.names) not in ({"pipe"}, {"pipe", "data"}):
        raise ValueError(
            f"the mesh of a pipeline has the dimensions 'pipe' and 'data', or 'pipe' alone, got {mesh.names}"
        )
    return mesh["pipe"], mesh["data"] if "data" in mesh.names else SerialCommunicator()
