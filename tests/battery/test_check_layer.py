"""The battery itself: it passes a layer of one's own, and every check of it finds a layer that does wrong."""

from collections.abc import Callable

import pytest

from pytagi_ddp import nn
from pytagi_ddp.kernels.cpu.layers import step
from pytagi_ddp.nn.files import persistence
from tests.battery import CHECKS, check_layer, keeping, numerics, passes
from tests.battery.example import Example
from tests.battery.layers import examples_of
from tests.nn import reference, reference_activation
from tests.nn.carrying import Memory


class Own(nn.LeakyReLU):
    """An activation as it could stand in somebody's program."""

    name = "Own"

    def __init__(self, slope: float = 0.5):
        super().__init__(slope)

    def settings(self):
        return {"slope": self.negative_slope}


@pytest.fixture
def formula(monkeypatch):
    monkeypatch.setitem(reference_activation.FORMULAS, "Own", reference_activation.leaky_relu)


def test_a_layer_of_ones_own(formula):
    assert check_layer(lambda: nn.Sequential(nn.Linear(4, 6), Own(), nn.Linear(6, 3))) == {}


def test_what_does_not_apply_is_told(formula):
    skipped = check_layer(lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm2d(6), Own(), nn.Linear(6, 3)))
    assert skipped == {"shards_add_up": "statistics of the batch tie its samples together"}


def test_a_layer_that_carries_state(monkeypatch):
    monkeypatch.setitem(reference.LAYERS, Memory, lambda layer, m, s: (m + 1, s, lambda dm, ds, sums: (dm, ds)))
    skipped = check_layer(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), Memory(), nn.Linear(6, 3)))
    assert skipped == {
        "samples_are_predicted_one_by_one": "what is carried from one batch to the next makes a sample depend on those "
        "before it",
        "frames_keep_passes_apart": "what is carried may change in a backward pass, before the next pass there",
    }


class ReadsWhatIsCarried(Memory):
    """Not as the pass found it, but as it is."""

    replayable = True

    def mean(self, saved):
        return self.state["mean"]


class CarriesAgain(Memory):
    """In a pass that is run again, too."""

    replayable = True

    def carry(self, values, saved):
        self.kernels.array.copy(values, self.state["mean"])


@pytest.mark.parametrize("layer", [ReadsWhatIsCarried, CarriesAgain])
def test_state_that_a_repeated_pass_gets_wrong_is_found(layer):
    with pytest.raises(AssertionError, match=r", recomputed: .* differs"):
        passes.blocks_have_the_same_bits(among(layer))


def test_what_is_missing_is_named(monkeypatch):
    with pytest.raises(AssertionError, match=r"which numbers of Own are right: add its formulas to reference\.LAYERS"):
        numerics.equals_float64(among(Own))
    with pytest.raises(LookupError, match=r"BaseLayer has no example: add to EXAMPLES in tests/battery/layers\.py"):
        examples_of(nn.BaseLayer)
    monkeypatch.delitem(reference.LAYERS, nn.Linear)
    assert numerics.oracles(nn.Linear)[0] == "golden/batchnorm_fc.npz"
    why = numerics.equals_float64(among(nn.ReLU))
    assert why.startswith("Linear has no float64 reference; covered by golden/batchnorm_fc.npz, golden/closedform")


class FirstSampleCounts(nn.ReLU):
    """By NumPy, too, which no recording sees."""

    replayable = True

    def forward(self, state, saved):
        state.mu[0] *= 2
        return super().forward(state, saved)


class RemembersBatches(nn.ReLU):
    seen = 0

    def forward(self, state, saved):
        self.seen += state.batch
        state.mu[...] += self.seen
        return super().forward(state, saved)


class ForgetsShards(nn.Linear):
    def backward(self, delta, saved):
        return super().backward(delta, saved.ask(saved.needs_input, False))


class LearnsFromNothing(nn.Linear):
    def backward(self, delta, saved):
        delta.mu[...] += 1
        return super().backward(delta, saved)


class NoisyWhereKnown(nn.Linear):
    def forward(self, state, saved):
        out = super().forward(state, saved)
        if state.var is None:
            out.var[...] += 1
        return out


class KnowsThreads(nn.ReLU):
    replayable = False  # its product is not a call of a kernel

    def forward(self, state, saved):
        state.mu[...] *= self.num_threads
        return super().forward(state, saved)


class KeepsHooks(nn.LayerBlock):
    """Runs its layers without the hooks of the network."""

    def forward(self, state, saved):
        for layer in self.layers:
            state = layer.forward(state, saved.of(layer))
        return state


class LearnsInEvaluation(nn.BatchNorm2d):
    def forward(self, state, saved):
        self.running_mean[...] += 1
        return super().forward(state, saved)


class LosesSlope(nn.LeakyReLU):
    def __getstate__(self):
        return super().__getstate__() | {"negative_slope": 0.9}


class HidesState(nn.ReLU):
    factor = 1.0

    def forward(self, state, saved):
        if self.training:
            self.factor *= 0.9
        state.mu[...] *= self.factor
        return super().forward(state, saved)


class KeepsItselfBetweenPasses(nn.Linear):
    """What `backward` needs of `forward`, in an attribute of the layer instead of the context."""

    replayable = True
    last = 0.0

    def forward(self, state, saved):
        self.last = 1 + float(abs(state.mu).sum())
        return super().forward(state, saved)

    def backward(self, delta, saved):
        delta.mu[...] *= self.last
        return super().backward(delta, saved)


class ReadsVariancesAgain(nn.Linear):
    needs_variances = False

    def backward(self, delta, saved):
        delta.mu[...] *= 1 + saved.input.var.mean()
        return super().backward(delta, saved)


class KnowsItsNetwork(nn.ReLU):
    def forward(self, state, saved):
        state.mu[...] *= len(self._owner.layers)
        return super().forward(state, saved)


class HidesSetting(nn.LeakyReLU):
    def settings(self):
        return {}


class KeepsRecordings(nn.LeakyReLU):
    replayable = True
    negative_slope = 0.1  # a plain attribute


class HasAnotherPrior(nn.Linear):
    """Than `init_weight_bias` says."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.var_w = 0.5 * self.var_w


class LearnsByItself(nn.Linear):
    def backward(self, delta, saved):
        self.parameters.w.mu[...] += 1e-3
        return super().backward(delta, saved)


def among(make: Callable[[], nn.BaseLayer], first: Callable = nn.Linear) -> Example:
    """The layer of `make` between dense ones."""
    return Example(lambda: nn.Sequential(first(4, 6), make(), nn.Linear(6, 3)))


FAULTS = {
    numerics.equals_float64: (lambda: LearnsFromNothing(6, 6), "input delta mean: error"),
    numerics.shards_add_up: (lambda: ForgetsShards(6, 6), "delta_mu_w of layer 1 .*: error"),
    numerics.samples_are_predicted_one_by_one: (FirstSampleCounts, "mean: error"),
    numerics.order_does_not_matter: (FirstSampleCounts, "output mean: error"),
    numerics.nothing_is_left_of_other_batches: (RemembersBatches, "output mean: error"),
    numerics.missing_observations_teach_nothing: (lambda: LearnsFromNothing(6, 6), "without observations has deltas"),
    numerics.threads_do_not_change_products: (KnowsThreads, "output mean: error"),
    numerics.threads_do_not_change_numbers: (KnowsThreads, "output mean: error"),
    passes.a_pass_that_is_cut_short_changes_nothing: (RemembersBatches, "after passes that were cut short"),
    passes.recorded_passes_have_the_same_bits: (FirstSampleCounts, "differ"),
    passes.blocks_have_the_same_bits: (RemembersBatches, "one block, recomputed: theta differs"),
    passes.memory_of_passes_may_hold_anything: (
        lambda: ReadsVariancesAgain(6, 6),
        "other memory of passes: theta differs",
    ),
    passes.hooks_are_called_once: (lambda: KeepsHooks(nn.Linear(6, 6)), "hooks of the forward pass"),
    passes.state_changes_in_training_only: (lambda: LearnsInEvaluation(6), "predict: statistics differs"),
    passes.frames_keep_passes_apart: (lambda: KeepsItselfBetweenPasses(6, 6), "in frames: theta differs"),
    passes.parts_have_the_same_bits: (KnowsItsNetwork, "cut before layer 1: step 0 differs"),
    keeping.copies_continue_alone: (LosesSlope, "a copy, two steps later: theta differs"),
    keeping.forgetting_ends_at_the_prior: (lambda: HasAnotherPrior(6, 6), "forgetting: theta differs"),
    keeping.frozen_layers_stay_as_they_are: (lambda: LearnsByItself(6, 6), "leaf 1, with leaf 1 frozen"),
    keeping.files_bring_everything_back: (HidesState, "a file, two steps later: theta differs"),
    keeping.settings_that_are_assigned_count: (KeepsRecordings, "negative_slope of .* assigned, two steps"),
    keeping.settings_make_the_layer_again: (HidesSetting, r"settings set\(\), arguments {'negative_slope'}"),
}


@pytest.mark.parametrize("check", FAULTS, ids=lambda check: check.__name__)
def test_faults_are_found(check, monkeypatch):
    monkeypatch.setitem(reference.LAYERS, LearnsFromNothing, reference.linear)
    make, words = FAULTS[check]
    with pytest.raises(AssertionError, match=words):
        check(among(make))


def test_a_setting_that_is_not_compared_is_found(monkeypatch):
    monkeypatch.setattr(persistence, "first_difference", lambda ours, theirs: None)
    with pytest.raises(AssertionError, match=r"input_size of Linear\.0 is 5 there and 4 here: got None"):
        keeping.files_of_other_settings_are_refused(among(nn.ReLU))


def test_noise_on_known_inputs_is_found():
    with pytest.raises(AssertionError, match="output variance: error"):
        numerics.no_variance_is_zero_variance(among(nn.ReLU, first=NoisyWhereKnown))


def test_state_that_a_refused_step_leaves_moved_is_found(monkeypatch):
    monkeypatch.setattr(step, "settle", lambda state, kept, non_finite: None)
    with pytest.raises(AssertionError, match="step 0, refused: statistics differs"):
        passes.a_step_that_is_refused_changes_nothing(among(lambda: nn.BatchNorm2d(6)))


def test_every_check_can_fail():
    others = {keeping.files_of_other_settings_are_refused, numerics.no_variance_is_zero_variance}
    others |= {passes.a_step_that_is_refused_changes_nothing}
    assert FAULTS.keys() | others == {*CHECKS}
