"""`BatchNorm2d(..., through_statistics=True)`: deltas take into account that its statistics depend on the units."""

import json

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.nn.files.architecture import architecture, first_difference
from tests.battery.example import observe, train
from tests.learning import backpropagate


def network(through: bool = True) -> nn.Sequential:
    manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm2d(5, through_statistics=through), nn.Linear(5, 2))
    net.input_state_update = True
    return net


def deltas_of_norm(net: nn.Sequential, batch: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Units in front of the norm, and the deltas of their means, by those of the weights and of the input."""
    x = np.random.default_rng(1).standard_normal((batch, 4), np.float32)
    backpropagate(net, x, np.random.default_rng(2).standard_normal(2 * batch, np.float32), 0.3)
    w = net.layers[0].mu_w.reshape(5, 4)
    of_input = np.reshape(net.get_input_states()[0], (batch, 4))
    return x @ w.T, of_input @ np.linalg.pinv(w)  # of_input = deltas w: five units, of which four directions are seen


def test_a_shift_of_all_units_is_worth_nothing():
    for through, small in ((True, 1e-4), (False, np.inf)):
        _, deltas = deltas_of_norm(network(through))
        relative = np.abs(deltas.sum(0)).max() / np.abs(deltas).sum(0).max()
        assert relative < small
        assert through or relative > 0.01


def test_frozen_statistics_are_constants():
    frozen = [network(through) for through in (True, False)]
    for net in frozen:
        train(net, 8)
        net.load_state_dict(network().state_dict())
        net.layers[1].training = False
        observe(net, 8)
    np.testing.assert_array_equal(*(net.arena.delta for net in frozen))


def test_synchronised_statistics_are_refused():
    ddp = nn.DDPSequential(network(), nn.DDPConfig(backend="serial"), sync_batch_norm=True)
    with pytest.raises(RuntimeError, match="leave one of them out"):
        ddp(np.ones((3, 4)))


def test_files_of_earlier_versions_have_constants():
    def earlier(net: nn.Sequential) -> str:
        layers = json.loads(architecture(net))
        del layers["BatchNorm2d.1"]["through_statistics"]
        return json.dumps(layers)

    assert first_difference(architecture(network(False)), earlier(network(False))) is None
    found = first_difference(architecture(network(True)), earlier(network(False)))
    assert found == ("through_statistics of BatchNorm2d.1", True, False)
