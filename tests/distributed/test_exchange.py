"""Strategies of exchange: one class each, which the options of a DDPSequential choose, and the way of a step to it."""

import sys
from pathlib import Path

import numpy as np
import pytest

import pytagi_ddp
from pytagi_ddp.distributed import DDPConfig, DDPSequential, FSDPSequential, PipelineSequential, config
from pytagi_ddp.distributed.buckets import Buckets
from pytagi_ddp.distributed.compression import HalfPrecision
from pytagi_ddp.distributed.exchange import EveryStep, Options
from pytagi_ddp.distributed.merge import PosteriorMerge
from pytagi_ddp.nn import Linear, OutputUpdater, ReLU, Sequential

HOME = str(Path(pytagi_ddp.__file__).parent)


def network() -> Sequential:
    return Sequential(Linear(3, 8), ReLU(), Linear(8, 1))


def learn(net, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    net(rng.normal(size=(4, 3)))
    OutputUpdater("cpu").update(net.output_z_buffer, rng.normal(size=4), 0.1, net.input_delta_z_buffer)
    net.backward()


def serial(**options) -> DDPConfig:
    return DDPConfig(backend="serial", **options)


@pytest.mark.parametrize(
    ("strategy", "of_config", "others"),
    [
        (EveryStep, {}, {}),
        (EveryStep, {}, {"sync_batch_norm": True}),
        (Buckets, {"buckets": 2}, {"sync_batch_norm": True}),
        (HalfPrecision, {"wire_dtype": "bfloat16"}, {}),
        (PosteriorMerge, {}, {"every": 2}),
        (PosteriorMerge, {}, {"merge": "mean"}),
    ],
)
def test_options_choose_a_strategy(strategy, of_config, others):
    assert config.choose_strategy(Options(serial(**of_config), **others)) is strategy


class Counting(EveryStep):
    """A strategy in one class: it adds deltas in every step, and counts its steps."""

    option = "every=7"

    @classmethod
    def is_asked_for(cls, options: Options) -> bool:
        return options.every == 7

    def step(self, stop: bool, now: bool = False) -> None:
        self.steps += 1
        super().step(stop, now)


def test_a_new_strategy_is_one_class(monkeypatch):
    monkeypatch.setattr(config, "STRATEGIES", (Counting, Buckets, HalfPrecision))
    net = DDPSequential(network(), serial(), every=7)
    learn(net)
    net.step()
    assert net.steps_alone == 1
    with pytest.raises(ValueError, match="leave the others out: every=7 and buckets > 1"):
        DDPSequential(network(), serial(buckets=2), every=7)
    with pytest.raises(ValueError, match="leave the others out: every=7 and buckets > 1"):
        serial(buckets=2).check("cpu", 7, False)


def test_a_step_is_fifteen_calls_from_the_engine():
    """Each of them is in the way of every small step; there were 24."""
    net = DDPSequential(network(), serial())
    for seed in range(3):
        learn(net, seed)
        net.step()
    learn(net)
    calls: list[str] = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            calls.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        net.step()
    finally:
        sys.setprofile(None)
    assert calls.index("_all_reduce") + 1 <= 15, calls


@pytest.mark.parametrize("kind", [DDPSequential, FSDPSequential, PipelineSequential])
def test_an_interrupted_step_ends_before_the_next_call(kind):
    """Whichever call comes next: all ranks have exchanged the deltas, and the others have made the step."""
    nets = [kind(network(), serial()) for _ in range(2)]
    state = nets[0].state_dict()
    for net in nets:
        net.load_state_dict(state)
        if kind is PipelineSequential:
            x = np.ones((4, 3))
            net.forward_backward(x, lambda s, rows, d: OutputUpdater("cpu").update(s, np.ones(len(s.mu_a)), 0.1, d))
        else:
            learn(net)
    interrupted, whole = nets
    whole.step()
    step, interrupted.model.step_alone = interrupted.model.step_alone, lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        interrupted.step()
    interrupted.model.step_alone = step
    interrupted.update_bn([np.ones((4, 3))])
    assert interrupted.state_dict() == whole.state_dict() != state


def test_what_a_wrapper_hands_to_the_network_is_documented_and_has_its_arguments():
    for name in ("predict", "smoother", "get_lstm_states", "set_lstm_states"):
        method = getattr(DDPSequential, name)
        assert method.__doc__.startswith(f"`Sequential.{name}` ") and method.__wrapped__ is getattr(Sequential, name)
    net = DDPSequential(network(), serial())
    x = np.ones((5, 3))
    np.testing.assert_array_equal(net.predict(x, batch_size=2), net.model.predict(x, batch_size=2))
