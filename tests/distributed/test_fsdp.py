"""FSDPSequential where one rank does what all of them must do, and the parts that it is made of."""

import copy
import itertools
import time

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition
from pytagi_ddp.distributed import CollectiveTimeoutError, RankLeftError, create_communicator, run_threads
from pytagi_ddp.distributed.sharded_arena import ALIGNMENT, groups_of
from pytagi_ddp.models import resnet18_cifar10
from pytagi_ddp.nn import DDPSequential, FSDPSequential, OutputUpdater
from tests.learning import backpropagate, learn
from tests.mpi.ddp_networks import WITHOUT_BATCH_NORM, batch, difference, with_batch_norm


def on_rank_0(what, seconds, folder):
    communicator = create_communicator("threads", timeout=0.5)
    net = FSDPSequential(WITHOUT_BATCH_NORM["Conv2d"](), communicator=communicator)
    x, _y = batch(net.model, 3, 0)
    calls = {
        "predict": lambda: net.predict(x),
        "forward": lambda: net(x),
        "save": lambda: net.save(folder / "net"),
        "state_dict": net.state_dict,
        "unshard": lambda: net.unshard().__enter__(),
        "update_bn": lambda: net.update_bn([x]),
        "forget_evidence": lambda: net.forget_evidence(2),
        "step": net.step,
    }
    if communicator.rank == 0:
        calls[what]()
    else:
        time.sleep(seconds)


@pytest.mark.parametrize(
    "what", ["predict", "forward", "save", "state_dict", "unshard", "update_bn", "forget_evidence", "step"]
)
def test_what_one_rank_does_alone_ends_with_an_error(what, tmp_path):
    with pytest.raises(RankLeftError, match=rf"^{what}\(\) of FSDPSequential is collective.* rank 1 has left"):
        run_threads(on_rank_0, 2, what, 0, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_rank_that_does_not_come_is_too_late(tmp_path):
    with pytest.raises(CollectiveTimeoutError, match=r"^predict\(\) of FSDPSequential is collective"):
        run_threads(on_rank_0, 2, "predict", 1, tmp_path)


def cannot_be_saved(folder):
    net = FSDPSequential(WITHOUT_BATCH_NORM["Conv2d"](), communicator=create_communicator("threads", timeout=5))
    with pytest.raises(OSError, match="file"):
        net.save(folder / "file" / "net")
    net.save(folder / "net")
    return (folder / "net").exists()


def test_what_rank_0_cannot_save_is_known_to_all(tmp_path):
    (tmp_path / "file").touch()
    assert run_threads(cannot_be_saved, 2, tmp_path) == [True, True]


def rank_0_predicts():
    communicator = create_communicator("threads", timeout=20)
    net = FSDPSequential(with_batch_norm(1), communicator=communicator, min_num_params=60)
    x, y = batch(net.model, 4, communicator.rank)
    found = []
    for _ in range(2):
        if communicator.rank == 0:
            found.append(net.predict(x, batch_size=3))
        learn(net, x, y)
    with net.unshard():
        found.append(net.predict(x))
    return found


def test_other_ranks_take_part_in_what_one_predicts():
    first, _ = run_threads(rank_0_predicts, 2)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[1], first[2])


def compared():
    communicator = create_communicator("threads", timeout=20)
    assert communicator.debug
    manual_seed(1)
    make = {"sync_batch_norm": True, "communicator": communicator}
    nets = [FSDPSequential(with_batch_norm(1), **make, min_num_params=60), DDPSequential(with_batch_norm(1), **make)]
    nets[1].load_state_dict(communicator.broadcast_object(nets[0].state_dict()))
    for net in nets:
        for step in range(1 + communicator.rank):
            x, y = batch(net.model, 3, step)
            with net.no_sync():
                backpropagate(net, x, y)
        net.step()
    found = nets[0].state_dict()
    return found if communicator.rank else difference(found, nets[1].state_dict())


def test_ranks_compare_what_they_do(monkeypatch):
    """With PYTAGI_DDP_DEBUG, each collective is compared before it runs: ranks that follow make the same ones."""
    monkeypatch.setenv("PYTAGI_DDP_DEBUG", "1")
    assert run_threads(compared, 2)[0] < 1e-5


def series():
    communicator = create_communicator("threads", timeout=20)
    manual_seed(4)
    net = nn.Sequential(nn.SLSTM(2, 5), nn.SLSTM(5, 4), nn.SLinear(4, 1))
    whole = DDPSequential(copy.deepcopy(net), communicator=communicator)
    sharded = FSDPSequential(net, communicator=communicator, min_num_params=60)
    for step in range(4):
        x, y = batch(net, 1, 10 * communicator.rank + step)
        for each in (sharded, whole):
            learn(each, x, y)
    memory = [each.get_lstm_states()[1][0] for each in (sharded, whole)]
    return [np.array_equal(*memory), np.array_equal(sharded.smoother(), whole.smoother())]


def evaluates_alone():
    """What rank 0 finds by itself, with whole parameters, and what all ranks find inside unshard()."""
    communicator = create_communicator("threads", timeout=20)
    whole = {"communicator": communicator, "reshard_after_forward": False}
    manual_seed(4)
    recurrent = FSDPSequential(nn.Sequential(nn.SLSTM(2, 5), nn.SLinear(5, 1)), **whole)
    normed = FSDPSequential(with_batch_norm(1), sync_batch_norm=True, **whole)
    for net in (recurrent, normed):
        for step in range(2):
            x, y = batch(net.model, 1 if net is recurrent else 3, step)
            learn(net, x, y)
    found = [(recurrent.smoother(), normed.predict(x))] if communicator.rank == 0 else []
    communicator.barrier()
    with recurrent.unshard(), normed.unshard():
        found.append((recurrent.smoother(), normed.predict(x)))
    learn(normed, x, y)
    return [*found, communicator.rank]


def test_evaluation_with_whole_parameters_is_local():
    (alone, inside, _), (theirs, _) = run_threads(evaluates_alone, 2)
    for others in (inside, theirs):
        for one, other in zip(alone, others, strict=True):
            assert np.array_equal(one, other)
    assert np.ptp(alone[1][0]) > 0


def test_every_rank_smooths_its_own_series():
    assert run_threads(series, 2) == [[True, True]] * 2


def assigned_in_unshard(folder):
    communicator = create_communicator("threads", timeout=20)
    net = FSDPSequential(WITHOUT_BATCH_NORM["Conv2d"](), communicator=communicator, min_num_params=60)
    with net.unshard():
        net.model.layers[0].mu_w[...] = 7 + np.arange(net.model.layers[0].num_weights)
        CheckpointManager(folder).save(net, TrainingPosition(step=1))
        parts = {name: values for name, (values,) in net.state_dict(full=False).items() if "Conv2d.0/mu_w" in name}
    return parts


class Full:
    """The array functions of a device that has room for one more group, and no other."""

    def __init__(self, array, error):
        self._array, self._error, self._left = array, error, 2  # rows of means and of variances

    def __getattr__(self, name):
        return getattr(self._array, name)

    def empty(self, shape):
        if not self._left:
            raise self._error
        self._left -= 1
        return self._array.empty(shape)


class With:
    """A thing with other attributes."""

    def __init__(self, thing, **attributes):
        self._thing = thing
        vars(self).update(attributes)

    def __getattr__(self, name):
        return getattr(self._thing, name)


def trained_after_an_unshard_that_fails(folder, error):
    communicator = create_communicator("threads", timeout=20)
    net = FSDPSequential(WITHOUT_BATCH_NORM["Conv2d"](), communicator=communicator, min_num_params=60)
    kernels = net.model.kernels
    net.model.kernels = With(kernels, array=Full(kernels.array, error))
    with pytest.raises(type(error)), net.unshard():
        pass
    net.model.kernels = kernels
    for _ in range(3):
        learn(net, *batch(net.model, 3, communicator.rank))
    x, _y = batch(net.model, 3, 0)
    before = net.predict(x)
    CheckpointManager(folder).save(net, TrainingPosition(step=1))  # which takes in what was assigned in `unshard`
    with net.unshard():
        return before, net.predict(x)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("error", [MemoryError("no room"), KeyboardInterrupt()], ids=["memory", "interrupt"])
def test_an_unshard_that_fails_leaves_the_parameters(tmp_path, ranks, error):
    for before, after in run_threads(trained_after_an_unshard_that_fails, ranks, tmp_path, error):
        np.testing.assert_array_equal(before, after)


def pass_back_of_a_frame(reshard):
    """The first of two passes that are under way goes back, over a block that another has run since."""
    communicator = create_communicator("threads", timeout=20)
    make = {"communicator": communicator, "min_num_params": 100, "reshard_after_forward": reshard}
    net = FSDPSequential(with_batch_norm(2), **make)
    before = net.state_dict()
    net.model.checkpoint_blocks = True
    x, y = batch(net.model, 3, communicator.rank)
    for frame in (1, 2):
        net.model.passes.use(frame)
        net(x)
    OutputUpdater("cpu").update(net.output_z_buffer, y, np.full(y.size, 1.0), net.input_delta_z_buffer)
    net.model.passes.use(1)
    with pytest.raises(RuntimeError, match="leave out checkpoint_blocks, or frames"):
        net.backward()
    with pytest.raises(RuntimeError, match="cut short on 2 ranks"):
        net.step()
    after = net.state_dict()
    learned = [key for key in before if not key.endswith(".running")]
    return all(np.array_equal(*pair) for key in learned for pair in zip(before[key], after[key], strict=True))


@pytest.mark.parametrize("reshard", [True, False])
def test_a_pass_back_in_another_order_is_refused(reshard):
    assert run_threads(pass_back_of_a_frame, 2, reshard) == [True] * 2


class Interruption(Exception):
    pass


def load_cut_short(groups, monkeypatch):
    """Whether predictions are what they were, after a load that ended amid the first group; and after a whole one."""
    communicator = create_communicator("threads", timeout=20)
    most = {1: 10**6, 2: 60}[groups]
    net = FSDPSequential(WITHOUT_BATCH_NORM["Conv2d"](), communicator=communicator, min_num_params=most)
    assert len(net.model.arena.groups) == groups
    x, _y = batch(net.model, 3, 0)
    before, new = net.predict(x)[0], WITHOUT_BATCH_NORM["Conv2d"]()
    copy, left = net.model.kernels.array.copy, [3]

    def copy_three(source, target):
        if not left[0]:
            raise Interruption
        left[0] -= 1
        copy(source, target)

    with monkeypatch.context() as patch, pytest.raises(Interruption):
        patch.setattr(net.model.kernels.array, "copy", copy_three)
        net.load_state_dict(new.state_dict())
    found = [np.array_equal(net.predict(x)[0], before)]
    state = communicator.broadcast_object(new.state_dict())
    net.load_state_dict(state)
    return [*found, net.state_dict() == (state if communicator.rank == 0 else {})]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_load_that_is_cut_short(groups, monkeypatch):
    assert run_threads(load_cut_short, 1, groups, monkeypatch) == [[True, True]]


def seen_by_hooks(reshard):
    """What hooks from before and after the sharding saw of the parameters: in one pass both ways, and in the next."""
    communicator = create_communicator("threads", timeout=20)
    model, found = WITHOUT_BATCH_NORM["Conv2d"](), []

    def look(leaf, direction):
        if leaf.num_weights:
            found.append(float(leaf.mu_w.sum()))

    model.add_hook(look, look)
    net = FSDPSequential(model, communicator=communicator, reshard_after_forward=reshard, min_num_params=60)
    model.add_hook(look, look)
    x, y = batch(model, 3, 0)
    for _ in range(2):
        with net.no_sync():
            backpropagate(net, x, y)
        with net.unshard():
            pass
    net.step()
    return np.reshape(found, (2, -1))


@pytest.mark.parametrize("reshard", [True, False])
def test_hooks_find_parameters(reshard):
    for first, second in run_threads(seen_by_hooks, 2, reshard):
        leaves = sum(1 for leaf in WITHOUT_BATCH_NORM["Conv2d"]().arena.leaves if leaf.num_weights)
        assert first.size == leaves * 2 * 2 * 2 and np.array_equal(first, second)
        assert np.all(first != 0)


def trained_in_turns(reshard):
    """Batches of other sizes, a prediction in between: what is replayed after each step, and whether bits are equal."""
    communicator = create_communicator("threads", timeout=20)
    manual_seed(1)
    make = {"communicator": communicator}
    sharded = FSDPSequential(with_batch_norm(2), **make, reshard_after_forward=reshard, min_num_params=100)
    whole = DDPSequential(with_batch_norm(2), **make)
    whole.load_state_dict(communicator.broadcast_object(sharded.state_dict()))
    replayed = []
    for step, samples in enumerate([3, 3, 3, 3, 2, 3, 3, 3, 3]):
        for net in (sharded, whole):
            x, y = batch(net.model, samples, 10 * step + communicator.rank)
            backpropagate(net, x, y)
            if step == 4:
                net.predict(x)
            net.step()
        parts = sharded.model.passes._graphs._parts
        replayed.append(sorted(key[0] for key, (plan, _) in parts.items() if plan is not None))
    found = sharded.state_dict()
    return replayed, communicator.rank > 0 or found == whole.state_dict()


@pytest.mark.parametrize("reshard", [True, False])
def test_passes_in_shards_are_recorded(reshard):
    for replayed, equal in run_threads(trained_in_turns, 2, reshard):
        assert equal
        assert replayed[3] == replayed[8] == ["backward", "forward"]


@pytest.mark.filterwarnings("ignore:training on from")
def test_slices_inside_unshard_have_what_was_assigned_there(tmp_path):
    parts = {name: values for found in run_threads(assigned_in_unshard, 2, tmp_path) for name, values in found.items()}
    net = WITHOUT_BATCH_NORM["Conv2d"]()
    expected = 7 + np.arange(net.layers[0].num_weights)
    assert sum(values.size for values in parts.values()) == expected.size
    for name, values in parts.items():
        start, stop = map(int, name.partition("@")[2].split(":"))
        assert np.array_equal(values, expected[start:stop])
    CheckpointManager(tmp_path).load(net)
    assert np.array_equal(net.layers[0].mu_w.ravel(), expected)


def test_groups_of_a_resnet18():
    leaves = resnet18_cifar10().arena.leaves
    groups = groups_of(leaves, 4, 1_000_000)
    assert len(groups) == 12
    assert [leaf for group in groups for leaf in group.leaves] == [leaf for leaf in leaves if leaf.num_weights]
    assert max(group.size for group in groups) == 9 * 512 * 512
    for group, after in itertools.pairwise(groups):
        assert group.start + group.size == after.start
        assert group.shard % ALIGNMENT == 0 and 0 <= 4 * group.shard - group.size < 4 * ALIGNMENT
        owned = [group.own(rank) for rank in range(4)]
        assert owned[0][0] == 0 and owned[-1][1] == group.size
        assert all(a[1] == b[0] for a, b in itertools.pairwise(owned))
    for ranks, predicted in ((2, 139e6), (4, 93e6), (8, 69e6)):  # 16 P/R + 16 U + 8 MB
        shards = [group.shard for group in groups_of(leaves, ranks, 1_000_000)]
        assert 16 * (sum(shards) + ranks * max(shards)) < 1.01 * predicted
    assert len(groups_of(leaves, 4, 0)) == sum(1 for leaf in leaves if leaf.num_weights)
    assert len(groups_of(leaves, 4, 10**9)) == 1
