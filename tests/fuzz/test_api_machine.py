"""Random sequences of calls against a NumPy twin of the network: the same numbers, or the documented error.

`python -m tests.fuzz.test_api_machine SEED` tries others.
"""

import copy
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads, set_threads
from tests.conftest import ALL_TESTS

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
from hypothesis import strategies as st  # noqa: E402
from hypothesis.stateful import (  # noqa: E402
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

EXAMPLES, CALLS = 40 if ALL_TESTS else 20, 40
SIZES = (3, 5, 2)
seeds, batches = st.integers(0, 1000), st.integers(1, 5)


class Twin:
    """Linear, Tanh, Linear in float64, as the docstrings of the layers and of `Sequential` define them.

    Attributes:
        theta: for each Linear [mu_w, var_w, mu_b, var_b]; sums: [g_w, h_w, g_b, h_b] of the last backward pass.
        samples: behind the sums; None for sums that are of no use.
    """

    def __init__(self, net: nn.Sequential):
        self.follow(net)
        self.sums = [[np.zeros_like(values) for values in layer] for layer in self.theta]
        self.samples: int | None = 0
        self.applied, self.accumulating, self.training, self.went_back = True, False, True, False
        self.deltas: tuple[np.ndarray, np.ndarray] | None = None  # those at the output
        self.output = self.in_deltas = None

    def follow(self, net: nn.Sequential) -> None:
        """Takes the parameters of the network, so that rounding errors do not add up. No backward pass follows."""
        self.passed: list | None = None  # what a backward pass needs
        shapes = [(SIZES[1], SIZES[0]), (SIZES[2], SIZES[1])]
        self.theta = [
            [values.astype(np.float64).reshape(shape if k < 2 else -1) for k, values in enumerate(layer)]
            for layer, shape in zip(net.parameters(), shapes, strict=True)
        ]

    def forward(self, x: np.ndarray, var_x: np.ndarray, training: bool) -> tuple[np.ndarray, np.ndarray]:
        m, s, j, inputs = x, var_x, np.ones_like(x), []
        for k, (w, w_var, b, b_var) in enumerate(self.theta):
            inputs.append((m, j))
            m, s = m @ w.T + b, s @ (w * w + w_var).T + (m * m) @ w_var.T + b_var
            if k == 0:
                m = np.tanh(m)
                j = 1 - m * m
                s = j * j * s
        self.passed, self.went_back = inputs if training else None, False
        self.output, self.deltas = (m, s), None
        return m, s

    @property
    def awaits_backward(self) -> bool:
        """Whether deltas at the output wait for a backward pass, and no earlier sums wait for the step."""
        filled = self.passed is not None and self.deltas is not None and not self.went_back
        return filled and (self.accumulating or self.applied or not self.samples)

    def update(self, y: np.ndarray, var_y: float) -> None:
        m, s = self.output
        known = ~np.isnan(y)
        self.deltas = np.where(known, (y - m) / (s + var_y), 0), np.where(known, -1 / (s + var_y), 0)

    def backward(self) -> None:
        dm, ds = self.deltas
        adds = self.accumulating and not self.applied
        for k in (1, 0):
            (m, j), w = self.passed[k], self.theta[k][0]
            fresh = [dm.T @ m, ds.T @ (m * m), dm.sum(0), ds.sum(0)]
            self.sums[k] = [old + new for old, new in zip(self.sums[k], fresh, strict=True)] if adds else fresh
            dm, ds = j * (dm @ w), j * j * (ds @ (w * w))
        self.in_deltas, self.went_back = (dm, ds), True
        self.samples, self.applied = len(m) + (self.samples if adds else 0), False

    def step(self) -> None:
        cap = 0.1 if self.samples == 1 else 2 if self.samples else 1
        for layer, sums in zip(self.theta, self.sums, strict=True):
            for k in (0, 2):
                m, s, g, h = layer[k], layer[k + 1], sums[k], sums[k + 1]
                bar = np.sqrt(s) / cap
                layer[k] = m + np.clip(s * g, -bar, bar)
                var = s + np.clip(s * s * h, -bar, bar)
                layer[k + 1] = np.where(var <= 0, 1e-5, var)
        self.applied, self.accumulating = True, False

    def forget(self) -> None:
        """Sums that are of no parameters that there are."""
        self.sums = [[np.zeros_like(values) for values in layer] for layer in self.sums]
        self.samples, self.applied = 0, True

    def drop(self) -> None:
        self.samples, self.applied, self.accumulating = None, True, False


def assert_close(actual, expected) -> None:
    expected = np.asarray(expected).reshape(-1)
    np.testing.assert_allclose(
        np.asarray(actual).reshape(-1), expected, rtol=1e-3, atol=1e-4 * max(1, abs(expected).max())
    )


class Calls(RuleBasedStateMachine):
    @initialize(seed=seeds)
    def begin(self, seed):
        manual_seed(seed)
        self.threads = get_threads()
        self.net = nn.Sequential(nn.Linear(*SIZES[:2]), nn.Tanh(), nn.Linear(*SIZES[1:]))
        self.updater = nn.OutputUpdater("cpu")
        self.twin = Twin(self.net)
        self.folder = tempfile.TemporaryDirectory()
        self.block = ExitStack()
        self.hooks: nn.HookHandle | None = None
        self.saved: list | None = None

    def teardown(self):
        set_threads(getattr(self, "threads", 1))
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def inputs(self, seed, batch, noisy):
        random = np.random.default_rng(seed)
        return random.normal(size=(batch, SIZES[0])), random.uniform(0, 1, (batch, SIZES[0])) if noisy else None

    @rule(seed=seeds, batch=batches, noisy=st.booleans(), dtype=st.sampled_from([np.float32, np.float64]))
    def forward(self, seed, batch, noisy, dtype):
        x, var_x = self.inputs(seed, batch, noisy)
        result = self.net(x.astype(dtype), None if var_x is None else var_x.astype(dtype))
        expected = self.twin.forward(x, np.zeros_like(x) if var_x is None else var_x, self.twin.training)
        assert_close(result, expected)
        assert_close(self.net.get_outputs(), expected)

    @rule(seed=seeds, samples=st.integers(1, 12), noisy=st.booleans())
    def predict(self, seed, samples, noisy):
        x, var_x = self.inputs(seed, samples, noisy)
        training = self.twin.training
        result = self.net.predict(x, batch_size=5, var_x=var_x)
        expected = self.twin.forward(x, np.zeros_like(x) if var_x is None else var_x, False)
        assert_close(result, expected)
        assert self.net.training == training
        rows = self.net.output_z_buffer.block_size  # of the last batch; or of all, where one pass was replayed
        assert rows in ((samples - 1) % 5 + 1, samples)
        self.twin.output = tuple(moments[-rows:] for moments in expected)

    @precondition(lambda self: self.twin.output is not None)
    @rule(seed=seeds, missing=st.booleans(), sigma=st.sampled_from([0.1, 1.0]))
    def update(self, seed, missing, sigma):
        y = np.random.default_rng(seed).normal(size=self.twin.output[0].shape)
        if missing:
            y[0] = np.nan
        self.updater.update(self.net.output_z_buffer, y, np.full(y.shape, sigma**2), self.net.input_delta_z_buffer)
        self.twin.update(y, sigma**2)

    @rule(need_input=st.booleans())
    def backward(self, need_input):
        self.net.input_state_update = need_input
        if self.twin.passed is None or not self.twin.training:
            with pytest.raises(RuntimeError, match="forward pass in training mode"):
                self.net.backward()
            return
        if self.twin.deltas is None:
            with pytest.raises(RuntimeError, match="not filled since the network was called"):
                self.net.backward()
            return
        if len(self.twin.deltas[0]) != len(self.twin.passed[0][0]):
            with pytest.raises(ValueError, match="deltas, the batch has"):
                self.net.backward()
            return
        self.net.backward()
        self.twin.backward()
        if need_input:
            assert_close(self.net.get_input_states(), self.twin.in_deltas)

    @precondition(lambda self: self.twin.passed is not None)
    @rule(batch=batches)
    def update_for_another_batch(self, batch):
        """As many numbers or not: what fits another network's output does not fit this pass."""
        other = nn.BaseHiddenStates(batch * SIZES[2], batch)
        values = np.zeros(batch * SIZES[2])
        self.updater.update(other, values, values + 1, self.net.input_delta_z_buffer)
        self.twin.deltas = np.zeros((batch, SIZES[2])), np.full((batch, SIZES[2]), -1.0)
        self.backward(False)

    @rule()
    def step(self):
        if self.twin.awaits_backward:
            with pytest.raises(RuntimeError, match="wait for a backward pass"):
                self.net.step()
            return
        if self.twin.samples is None:
            with pytest.raises(RuntimeError, match="cut short"):
                self.net.step()
            return
        self.net.step()
        self.twin.step()
        for actual, expected in zip(self.net.parameters(), self.twin.theta, strict=True):
            for part, values in zip(actual, expected, strict=True):
                assert_close(part, values)
        self.twin.follow(self.net)

    @rule()
    def accumulate(self):
        self.block.enter_context(self.net.accumulate())
        self.twin.accumulating = True

    @rule()
    def end_of_accumulation(self):
        self.block.close()

    @rule()
    def failure_in_an_accumulation(self):
        with pytest.raises(KeyError), self.net.accumulate():
            raise KeyError
        self.twin.drop()

    @rule(training=st.booleans())
    def mode(self, training):
        self.net.train() if training else self.net.eval()
        self.twin.training = training

    @rule(name=st.sampled_from(["net.safetensors", "other.safetensors"]))
    def save(self, name):
        self.net.save(Path(self.folder.name, name))
        self.saved = (self.saved or []) + [name]

    @precondition(lambda self: self.saved)
    @rule(which=st.integers(0, 9))
    def load(self, which):
        self.net.load(Path(self.folder.name, self.saved[which % len(self.saved)]))
        self.twin.follow(self.net)
        self.twin.forget()

    @rule()
    def deepcopy(self):
        self.block.close()
        self.net = copy.deepcopy(self.net)
        self.hooks = None
        self.twin.passed, self.twin.accumulating = None, False

    @rule(threads=st.integers(1, 3))
    def threads_of_kernels(self, threads):
        self.net.set_threads(threads)

    @rule()
    def hook(self):
        if self.hooks is None:
            self.hooks = self.net.add_hook(after=lambda leaf, direction: None)
        else:
            self.hooks.remove()
            self.hooks = None

    @rule(seed=seeds)
    def assign(self, seed):
        self.net.layers[0].var_b = np.random.default_rng(seed).uniform(0.1, 1, SIZES[1])
        self.twin.follow(self.net)

    @rule(values=st.sampled_from([np.zeros(4), [np.nan] * 3, ["a"] * 3, [np.inf, 0, 0]]))
    def input_that_is_refused(self, values):
        with pytest.raises((ValueError, TypeError)):
            self.net(values)

    @invariant()
    def parameters_are_finite(self):
        if hasattr(self, "net"):
            assert np.isfinite(self.net.arena.theta).all() and self.net.arena.theta[1].min() >= 0


Calls.TestCase.settings = hypothesis.settings(
    max_examples=EXAMPLES,
    stateful_step_count=CALLS,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
TestCalls = Calls.TestCase

if __name__ == "__main__":
    settings = hypothesis.settings(Calls.TestCase.settings, max_examples=200, derandomize=False, print_blob=True)
    run_state_machine_as_test(hypothesis.seed(int(sys.argv[1]))(Calls), settings=settings)
