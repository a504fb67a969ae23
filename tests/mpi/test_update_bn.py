"""Fresh statistics of BatchNorm2d on 1, 2 and 3 real ranks: those of one process for the union of the batches."""

import pytest

from tests.mpi.test_ddp import run

pytestmark = pytest.mark.mpi

UNION = """
from pytagi_ddp.nn import update_bn
manual_seed(2)
net = with_batch_norm(2)
reference = copy.deepcopy(net)
net.checkpoint_blocks = True
x, y = batch(net, 60, 0)
parts = np.split(3 * x + 1, [7, 20, 22, 40, 49])  # shares of ranks differ in batches and in images
if size == 3:
    parts[0] = parts[0][:0]  # a batch without images
ddp = DDPSequential(net, DDPConfig(backend="mpi", timeout=20), average=False)
with ddp.no_sync():  # deltas and sums of a first micro-batch wait
    backpropagate(ddp, x[2 * rank : 2 * rank + 2], y[2 * rank : 2 * rank + 2])
pending = net.arena.buffer.copy()
calls = ddp.communicator.reduce_calls
update_bn(parts[rank::size], ddp)
results["calls"] = ddp.communicator.reduce_calls - calls
results["pending"] = bool(np.array_equal(pending, net.arena.buffer))
update_bn([part for part in parts if len(part)], reference)
results["bits"] = comm.all_gather_object(bool(np.array_equal(net.arena.statistics, reference.arena.statistics)))
results["moved"] = float(np.abs(net.arena.statistics - np.repeat([0, 1] * 3, 3)).max())
ddp.step()
results["equal"] = same_everywhere(ddp)
"""


@pytest.mark.parametrize("np", [1, 2, 3])
def test_statistics_of_all_ranks_are_those_of_one_process(np):
    results = run(UNION, np)
    assert results.pop("moved") > 0.5
    assert results == {"calls": 1, "pending": True, "bits": [True] * np, "equal": True}


SYNCHRONISED = """
from pytagi_ddp.nn import update_bn
manual_seed(2)
net = with_batch_norm(2)
reference = copy.deepcopy(net)
ddp = DDPSequential(net, DDPConfig(backend="mpi", timeout=20), average=False, sync_batch_norm=True)
x, y = batch(net, 12 * size, 0)
with ddp.no_sync():
    for k in range(rank):  # ranks come here with other numbers of passes behind them
        backpropagate(ddp, x[:2], y[:2])
mine = np.array_split(x, size)[rank]
numbers = [3 - r for r in range(size)]  # batches of each rank
update_bn([part for part in np.split(mine, 3)][: numbers[rank]], ddp)
joint = [
    np.concatenate([np.split(np.array_split(x, size)[r], 3)[k] for r in range(size) if k < numbers[r]])
    for k in range(3)
]
update_bn(joint, reference)
results["difference"] = float(np.abs(net.arena.statistics - reference.arena.statistics).max())
results["equal"] = same_everywhere(ddp)
backpropagate(ddp, x[:2], y[:2])
ddp.step()
results["equal after a step"] = same_everywhere(ddp)
"""


@pytest.mark.parametrize("np", [1, 2, 3])
def test_with_synchronised_statistics_ranks_are_one_process(np):
    results = run(SYNCHRONISED, np)
    assert results.pop("difference") < 2e-6
    assert results == {"equal": True, "equal after a step": True}


MERGED = """
from pytagi_ddp.nn import update_bn
net = with_batch_norm()
ddp = DDPSequential(net, DDPConfig(backend="mpi", timeout=20), every=2)
x, y = batch(net, 8 * size, rank)
for step in range(2):
    if step:
        try:
            update_bn([x], ddp)
        except RuntimeError as error:
            results["refused"] = str(error)
    backpropagate(ddp, x, y)
    ddp.step()
update_bn([x], ddp)
results["equal"] = same_everywhere(ddp)
for _ in range(2):
    backpropagate(ddp, x, y)
    ddp.step()
results["equal after a merge"] = same_everywhere(ddp)

manual_seed(1)
ddp = DDPSequential(with_batch_norm(), DDPConfig(backend="mpi", timeout=20, buckets=2), average=False)
backpropagate(ddp, x, y)
try:
    update_bn([x], ddp)
except RuntimeError as error:
    results["buckets"] = str(error)
ddp.step()
update_bn([x], ddp)
results["equal with buckets"] = same_everywhere(ddp)
"""


def test_replicas_that_differ_or_exchange_are_refused():
    results = run(MERGED, 2)
    assert "call merge() on every rank first" in results.pop("refused")
    assert "call step() on every rank first" in results.pop("buckets")
    assert results == {"equal": True, "equal after a merge": True, "equal with buckets": True}
