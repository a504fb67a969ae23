"""LSTM whose memory can be smoothed afterwards."""

from typing import Any

import numpy as np

from pytagi_ddp.kernels.tensors import Record, State
from pytagi_ddp.nn.lstm import LSTM
from pytagi_ddp.nn.state import Delta, DeltaPool

Memory = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
FIRST_CAPACITY = 64


class SLSTM(LSTM):
    """`LSTM` that keeps a record of its memory, for `Sequential.smoother`.

    Each training step with one sample of one time step is a step of the record: moments of h and C before and after its
    observation, and their covariances with those of the step before, with the weights of that forward pass. Evaluation
    moves the memory and leaves the record as it is. A record lasts until `Sequential.smoother`, or a move to another
    device; a copy begins without one.

    Arguments and errors are those of `LSTM`.

    Source: cuTAGI.
    """

    name = "SLSTM"
    _record: Record
    recorded = 0  # time steps in the record
    smoothed: Memory | None = None  # (mu_h, var_h, mu_c, var_c) of all time steps, from the last smoother

    @property
    def replayable(self) -> bool:  # type: ignore[override]
        """A record grows."""
        return not self.carries

    def forward(self, state: State) -> State:
        out = super().forward(state)
        if self._records(state.batch):
            n = self.output_size
            record = self._room()
            self._note(record.prior)
            before = self._scratch("carried var", (2 * n,))[n:]  # what `_carried` has kept
            cov = record.cov_c[self.recorded], record.cov_h[self.recorded]
            self.kernels.recurrent.record(self._kept, self.parameters.w, before, *cov)
        return out

    def backward(self, delta: Delta, pool: DeltaPool, need_input: bool, accumulate: bool) -> Delta | None:
        into = super().backward(delta, pool, need_input, accumulate)
        if self._records(self._input.batch):
            self._note(self._record.posterior)
            self.recorded += 1
        return into

    def _records(self, batch: int) -> bool:
        return self.training and self.carries and batch == 1 and not self.recomputing

    def _note(self, memory: tuple) -> None:
        """The present memory as that of the time step."""
        n = self.output_size
        for name, h, c in zip(("mu", "var"), memory[:2], memory[2:], strict=True):
            self.kernels.array.copy(self.state[name][:n], h[self.recorded])
            self.kernels.array.copy(self.state[name][n:], c[self.recorded])

    def _room(self) -> Record:
        """The record, with room for another time step."""
        if self.recorded == 0 or self.recorded == self._record.cov_c.shape[0]:
            empty, n = self.kernels.array.empty, self.output_size
            hint = self._owner.num_samples if self._owner else None
            size = max(FIRST_CAPACITY, hint or 0, 2 * self.recorded)
            shapes = [(size, n)] * 9 + [(size, n, n)]
            new = [empty(shape) for shape in shapes]
            if self.recorded:
                for old, array in zip(self._record.arrays, new, strict=True):
                    self.kernels.array.copy(old[: self.recorded], array[: self.recorded])
            self._record = Record(tuple(new[:4]), tuple(new[4:8]), *new[8:])
        return self._record

    def smooth(self) -> None:
        """Smooths the record, and begins another; `smoothed` holds what it found."""
        n = self.recorded
        record = Record(
            tuple(a[:n] for a in self._record.prior),
            tuple(a[:n] for a in self._record.posterior),
            self._record.cov_c[:n],
            self._record.cov_h[:n],
        )
        self.kernels.recurrent.smooth(record)
        mu_h, var_h, mu_c, var_c = (self.kernels.array.to_host(a) for a in record.posterior)
        self.smoothed, self.recorded = (mu_h, var_h, mu_c, var_c), 0

    def get_smoothed(self, time_step: int) -> Memory:
        """(mu_h, var_h, mu_c, var_c) that the last smoother found for a time step.

        Raises:
            IndexError: it had no such time step.
        """
        steps = 0 if self.smoothed is None else len(self.smoothed[0])
        if self.smoothed is None or not 0 <= time_step < steps:
            raise IndexError(f"time step {time_step}: the last smoother() found {steps} of them")
        mu_h, var_h, mu_c, var_c = (a[time_step].copy() for a in self.smoothed)
        return mu_h, var_h, mu_c, var_c

    def attach(self, kernels: Any) -> None:
        super().attach(kernels)
        self.recorded = 0

    def __getstate__(self) -> dict:
        state = super().__getstate__()
        state.pop("_record", None)
        return state | {"recorded": 0}
