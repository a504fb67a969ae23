"""Data-parallel training: every rank a replica, one all-reduce per step."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator, create_communicator
from pytagi_ddp.distributed.exchange import exchange_deltas, pool_statistics
from pytagi_ddp.distributed.placement import choose_device
from pytagi_ddp.nn.data_struct import BaseDeltaStates, BaseHiddenStates
from pytagi_ddp.nn.persistence import StateDict
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.state import Array


@dataclass
class DDPConfig:
    """How ranks find and talk to each other.

    Attributes:
        device_ids: GPU of each rank of a node, by local rank; None: the GPUs of the node in turn. Unused on the CPU.
        backend: "auto" (MPI if a launcher started several ranks, else serial), "mpi", "nccl" or "serial".
        rank, world_size: checked against the launcher's; None takes them from it.
        timeout: seconds that a rank may wait for the others; None: $PYTAGI_DDP_TIMEOUT, or 300.
        cuda_aware_mpi: "mpi" hands GPU memory to the MPI library, which must be built for that (it crashes otherwise),
            instead of going through pinned host memory.
    """

    device_ids: Sequence[int] | None = None
    backend: str = "auto"
    rank: int | None = None
    world_size: int | None = None
    timeout: float | None = None
    cuda_aware_mpi: bool = False


class DDPSequential:
    """A `Sequential` trained on R ranks, each with its own share of every batch.

    Construction broadcasts rank 0's parameters and running statistics. `step` adds the batch sums of all ranks with
    one all-reduce over one contiguous buffer, then every rank takes the same capped step: parameters stay equal to
    the last bit. `forward`, `backward`, `predict`, `state_dict`, `save` and `load` are local: no rank waits for
    another there.

    With n_r samples on rank r since the last step, n their sum, and R_a the ranks that have any:

        average=False:  the step of one process that saw all n samples (sum of deltas, cap factor c(n)).
        average=True:   sum / R_a, cap factor c(ceil(n / R_a)): as pytagi, the default.

    The average throws evidence away: on a linear model (20 weights, 4 ranks x 4 samples) its posterior variance came
    out 4.6 times the exact one, with means within 0.3 standard deviations of the exact ones. The sum, like any large
    TAGI batch, can overshoot: half the exact variance there, and means far off. On MNIST (4 ranks x 16 samples, one
    epoch) sum and average reached 5.2 and 4.4 % error with sigma_v = 0.1, and 4.1 and 6.2 % with sigma_v = 1.

    A network on a GPU goes to the GPU of its rank (that of a single rank stays), and any network does with
    `backend="nccl"`. There no step waits for the GPU; `stop_requested` does, when it is read.

    BatchNorm2d normalises by each rank's own batch; its running statistics come from all ranks, in the same
    all-reduce, so that they are equal everywhere too.

    Args:
        model: the network, of the same layers on every rank.
        config: how to communicate; None: `DDPConfig()`.
        average: aggregation of the deltas, see above.

    Attributes:
        model: the wrapped network. config, average: as given. communicator: rank, world_size, all_reduce, ...
        stop_requested: whether a rank had called `request_stop` before the last step.

    Raises:
        ValueError: another architecture on some rank; the message names the first difference.
    """

    def __init__(self, model: Sequential, config: DDPConfig | None = None, average: bool = True):
        self.model = model
        self.config = config or DDPConfig()
        self.average = average
        c = self.config
        self.communicator: Communicator = create_communicator(
            c.backend, c.rank, c.world_size, c.timeout, c.device_ids, c.cuda_aware_mpi
        )
        ours_to_choose = c.device_ids is not None or self.communicator.local_world_size > 1
        if self.communicator.backend == "nccl" or (model.device != "cpu" and ours_to_choose):
            model.to_device(f"cuda:{choose_device(self.communicator.local_rank, c.device_ids)}")
        self._pooled: Array | None = None  # the header of the last reduced buffer
        self._stop = False
        pool_statistics(model)
        self._compare_ranks()
        self.synchronize()

    @property
    def rank(self) -> int:
        return self.communicator.rank

    @property
    def world_size(self) -> int:
        return self.communicator.world_size

    def _compare_ranks(self) -> None:
        """Raises on every rank if some rank has other layers than rank 0."""
        mine = [
            (key, leaf.get_layer_info(), leaf.num_weights, leaf.num_biases, str(self.model.arena.theta.dtype))
            for key, leaf in self.model.named_leaves()
        ]
        for rank, theirs in enumerate(ranks := self.communicator.all_gather_object(mine)):
            first = ranks[0]
            for k in range(max(len(first), len(theirs))):
                a, b = (layers[k] if k < len(layers) else "no layer" for layers in (first, theirs))
                if a != b:
                    raise ValueError(
                        f"ranks 0 and {rank} have different networks: layer {k} is {a} on rank 0 and {b} on rank "
                        f"{rank} (key, layer, weights, biases, dtype)"
                    )

    def synchronize(self) -> None:
        """Gives every rank the parameters and running statistics of rank 0. Collective: all ranks must call it."""
        arena = self.model.arena
        self.communicator.broadcast(arena.theta)
        self.communicator.broadcast(arena.statistics)

    # -- training ---------------------------------------------------------------------------------------------

    def forward(self, mu_x, var_x=None) -> tuple[np.ndarray, np.ndarray]:
        """`Sequential.forward` on this rank's share of the batch."""
        return self.model.forward(mu_x, var_x)

    __call__ = forward

    def backward(self) -> None:
        """`Sequential.backward` on this rank; communicates nothing."""
        self.model.backward()

    def step(self) -> None:
        """Adds the deltas of all ranks (one all-reduce) and applies them; collective.

        A rank that saw no sample since the last step contributes zeros. No samples anywhere: no step.

        Raises:
            FloatingPointError: a delta that is not finite (on every rank alike); its parameter was not changed. On a
                GPU it comes with the next step, see `Sequential.step`.
        """
        self._pooled = exchange_deltas(self.communicator, self.model, self._stop)
        self.model.arena.step_pooled(self.average)

    @property
    def stop_requested(self) -> bool:
        return self._pooled is not None and bool(self._pooled[2] > 0)

    def request_stop(self) -> None:
        """Asks all ranks to stop: `stop_requested` becomes True on every rank with the same step."""
        self._stop = True

    def train(self) -> None:
        self.model.train()

    def eval(self) -> None:
        self.model.eval()

    def barrier(self) -> None:
        """Waits until every rank has come here."""
        self.communicator.barrier()

    # -- results and files, all local -------------------------------------------------------------------------

    def predict(self, x, batch_size: int = 256, var_x=None) -> tuple[np.ndarray, np.ndarray]:
        """`Sequential.predict` on this rank."""
        return self.model.predict(x, batch_size, var_x)

    def get_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        return self.model.get_outputs()

    def output_to_host(self) -> None:
        self.model.output_to_host()

    def get_device_with_index(self) -> str:
        """The device of this rank's replica, such as "cpu"."""
        return self.model.device

    def state_dict(self) -> StateDict:
        """Parameters and running statistics, equal on every rank after a step."""
        return self.model.state_dict()

    def save(self, filename: str | Path) -> None:
        """`Sequential.save` on rank 0; the other ranks return at once."""
        if self.rank == 0:
            self.model.save(filename)

    def load(self, filename: str | Path) -> None:
        """`Sequential.load`; every rank reads the file."""
        self.model.load(filename)

    @property
    def output_z_buffer(self) -> BaseHiddenStates:
        return self.model.output_z_buffer

    @output_z_buffer.setter
    def output_z_buffer(self, states: BaseHiddenStates) -> None:
        self.model.output_z_buffer = states

    @property
    def input_delta_z_buffer(self) -> BaseDeltaStates:
        return self.model.input_delta_z_buffer

    @input_delta_z_buffer.setter
    def input_delta_z_buffer(self, deltas: BaseDeltaStates) -> None:
        self.model.input_delta_z_buffer = deltas
