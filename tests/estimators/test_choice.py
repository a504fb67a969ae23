"""The choice of a training and of the number of its networks."""

import numpy as np
import pytest

from pytagi_ddp.estimators.choice import Choice
from pytagi_ddp.estimators.members import Training


@pytest.mark.parametrize(
    ("v", "folds", "expected"),
    [(0, 5, 2), (0.17, 5, 2), (0.18, 5, 3), (0.6, 5, 3), (0.7, 5, 4), (0.1, 2, 3), (0.22, 2, 4)],
)
def test_as_many_networks_as_reduce_the_loss(v, folds, expected):
    def loss(networks):
        return np.array([1 + v / len(networks[0])])

    samples = np.arange(10 * folds, dtype=np.float32)[:, None]
    choice = Choice(lambda places: [object()] * len(places), samples, np.arange(10 * folds) % folds, loss, None, None)
    training = Training((50,), 1)
    choice.consider(training)
    assert [len(some) for some in choice.mixed(training).networks] == [expected] * folds
