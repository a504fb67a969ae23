"""LSTM with a record of its memory, for `Sequential.smoother`."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from pytagi_ddp.kernels.tensors import Record, State
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.state import Array
from pytagi_ddp.nn.layers.lstm import LSTM

Memory = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
FIRST_CAPACITY = 64


def _made(arrays: Iterable[Array]) -> Record:
    """The record with these `Record.arrays`."""
    *moments, cov_c, cov_h = arrays
    return Record(tuple(moments[:4]), tuple(moments[4:]), cov_c, cov_h)


class SLSTM(LSTM):
    """`LSTM` that records its memory, for `Sequential.smoother`.

    Each training step with one sample of one time step adds a step to the record: the moments of h and C before and
    after the observation, and their covariances with those of the previous step, for the weights of that forward pass.
    Evaluation changes the memory but not the record. `Sequential.smoother` and a move to another device end a record;
    copies and pickles of the layer have it, too.

    Arguments and errors are those of `LSTM`.

    Source: cuTAGI.
    """

    _record: Record
    recorded = 0  # time steps in the record
    smoothed: Memory | None = None  # (mu_h, var_h, mu_c, var_c) of all time steps, from the last smoother

    def forward(self, state: State, saved: Saved) -> State:
        out = super().forward(state, saved)
        if self._records(state.batch) and not saved.recomputed:
            n = self.output_size
            prior, cov_c, cov_h = self._present(saved)
            for name, moments in zip(("mu", "var"), prior, strict=True):
                self.kernels.array.copy(self.state[name], moments)
            before = saved.scratch("carried var", (2 * n,))[n:]  # the memory of `carried`
            self.kernels.recurrent.record(saved.tensors, self.parameters.w, before, cov_c, cov_h)
        return out

    def after_backward(self, saved: Saved, batch: int, repeated: bool) -> None:
        """Adds a time step to the record: the moments of the forward pass, and their posterior.

        The network calls it after each backward pass, also after a replayed one.

        Args:
            saved: the context of the pass. batch: its samples.
            repeated: whether another backward pass has followed the same forward pass before.
        """
        if not self._records(batch):
            return
        if repeated and self.recorded:
            self.recorded -= 1
        record, t, n = self._room(), self.recorded, self.output_size
        prior, cov_c, cov_h = self._present(saved)
        posterior = self.state["mu"], self.state["var"]
        copies = [(cov_c, record.cov_c[t]), (cov_h, record.cov_h[t])]
        for moments, memory in ((prior, record.prior), (posterior, record.posterior)):
            for values, h, c in zip(moments, memory[:2], memory[2:], strict=True):
                copies += [(values[:n], h[t]), (values[n:], c[t])]
        for source, target in copies:
            self.kernels.array.copy(source, target)
        self.recorded += 1

    def _records(self, batch: int) -> bool:
        return self.training and self.carries and batch == 1

    def _present(self, saved: Saved) -> tuple[Array, Array, Array]:
        """(moments of h and C before the observation, their covariances for C and for h) of the last training step.

        They have fixed memory, because a replayed pass writes to the same memory each time, and the record grows.
        """
        n = self.output_size
        return saved.scratch("prior", (2, 2 * n)), saved.scratch("cov_c", (n,)), saved.scratch("cov_h", (n, n))

    def _room(self) -> Record:
        """The record, with memory for another time step."""
        if self.recorded == 0 or self.recorded == self._record.cov_c.shape[0]:
            empty, n = self.kernels.array.empty, self.output_size
            hint = self._owner.num_samples if self._owner else 0
            size = max(FIRST_CAPACITY, hint or 0, 2 * self.recorded)
            shapes = [(size, n)] * 9 + [(size, n, n)]
            new = [empty(shape) for shape in shapes]
            if self.recorded:
                for old, array in zip(self._record.arrays, new, strict=True):
                    self.kernels.array.copy(old[: self.recorded], array[: self.recorded])
            self._record = _made(new)
        return self._record

    def smooth(self) -> None:
        """Smooths the record into `smoothed`, and begins a new record."""
        record = _made(array[: self.recorded] for array in self._record.arrays)
        self.kernels.recurrent.smooth(record)
        mu_h, var_h, mu_c, var_c = (self.kernels.array.to_host(a) for a in record.posterior)
        self.smoothed, self.recorded = (mu_h, var_h, mu_c, var_c), 0

    def get_smoothed(self, time_step: int) -> Memory:
        """(mu_h, var_h, mu_c, var_c) of a time step, from the last smoother.

        Raises:
            IndexError: the record did not have this time step.
        """
        steps = 0 if self.smoothed is None else len(self.smoothed[0])
        if self.smoothed is None or not 0 <= time_step < steps:
            raise IndexError(f"time step {time_step}: the last smoother() found {steps} of them")
        mu_h, var_h, mu_c, var_c = (a[time_step].copy() for a in self.smoothed)
        return mu_h, var_h, mu_c, var_c

    def _attach(self, kernels: Any) -> None:
        before = self.__dict__.get("kernels")
        super()._attach(kernels)
        if before is not None and kernels.array is not before.array:
            self.recorded = 0
        elif before is None and self.recorded:  # a copy, whose record is on the host
            given, new = self._record.arrays, [kernels.array.empty(array.shape) for array in self._record.arrays]
            for source, target in zip(given, new, strict=True):
                kernels.array.copy(source, target)
            self._record = _made(new)

    def __getstate__(self) -> dict:
        state = super().__getstate__()
        record = state.pop("_record", None)
        if record is not None and self.recorded:
            to_host = self.kernels.array.to_host if "kernels" in self.__dict__ else np.array  # of a copy, before a pass
            state["_record"] = _made(to_host(array[: self.recorded]) for array in record.arrays)
        return state

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state if "_record" in state else state | {"recorded": 0})
