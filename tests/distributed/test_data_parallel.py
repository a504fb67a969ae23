"""One process, several replicas: the steps of as many ranks, results in order, errors on one device."""

import copy
import os
import signal
import threading
import time

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.distributed import DataParallel, DDPConfig, PipelineSequential, initialize, run_threads
from pytagi_ddp.distributed.thread_pool import ThreadPool
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads, set_threads
from pytagi_ddp.nn import (
    BatchNorm2d,
    Conv2d,
    DDPSequential,
    Linear,
    MixtureReLU,
    OutputUpdater,
    ReLU,
    Sequential,
)
from tests.learning import backpropagate


def dense():
    return Sequential(Linear(3, 9), MixtureReLU(), Linear(9, 2))


def with_batch_norm():
    return Sequential(Conv2d(2, 4, 3, padding=1, in_width=4, in_height=4), BatchNorm2d(4), ReLU(), Linear(64, 2))


def batch(net, n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, net.in_shape.size)).astype(np.float32), rng.normal(size=(n, 2)).astype(np.float32)


def learn(net, x, y):
    return backpropagate(net, x, y, 0.3)


def on_ranks(make, average, batches, ranks):
    """The state that `DDPSequential` comes to on so many ranks, each with a part of every batch."""

    def program():
        comm = initialize()
        manual_seed(7)
        net = make()
        ddp = DDPSequential(net, average=average)
        for x, y in batches:
            mine_x, mine_y = (np.array_split(a, ranks)[comm.rank] for a in (x, y))
            if len(mine_x):
                backpropagate(ddp, mine_x, mine_y, 0.3)
            ddp.step()
        return net.state_dict()

    return run_threads(program, ranks)[0]


@pytest.mark.parametrize("make", [dense, with_batch_norm])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_steps_have_the_bits_of_as_many_ranks(make, average, replicas):
    manual_seed(7)
    net = DataParallel(make(), ["cpu"] * replicas, average)
    batches = [batch(net.model, n, n) for n in (7, 2, 4)]
    for x, y in batches:
        mu, var = learn(net, x, y)
        assert mu.shape == var.shape == (2 * len(x),)
        net.step()
    expected = on_ranks(make, average, batches, replicas)
    assert net.state_dict() == expected
    assert all(rank.state_dict() == expected for rank in net._ranks)
    net.close()


def test_outputs_are_those_of_one_network_in_order():
    net = DataParallel(dense(), ["cpu"] * 3)
    x, _ = batch(net.model, 8)
    variances = np.full_like(x, 0.2)
    for given in ((x,), (x, variances)):
        found = net(*given)
        expected = net.model.predict(x, var_x=None if len(given) == 1 else variances)
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs.reshape(-1), rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(net.get_outputs(), found, strict=True):
        assert np.array_equal(mine, theirs)
    for mine, theirs in zip(net.predict(x, batch_size=2), net.model.predict(x), strict=True):
        assert mine.shape == (8, 2)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    net.close()


def test_states_modes_and_files_are_those_of_all(tmp_path):
    manual_seed(1)
    net, other = DataParallel(with_batch_norm(), ["cpu"] * 2), with_batch_norm()
    net.eval()
    assert not any(rank.model.training for rank in net._ranks)
    net.train()
    net.load_state_dict(other.state_dict())
    assert [rank.state_dict() == other.state_dict() for rank in net._ranks] == [True, True]
    learn(net, *batch(other, 4))
    net.step()
    net.save(tmp_path / "net")
    trained = net.state_dict()
    net.load_state_dict(other.state_dict())
    net.load(tmp_path / "net")
    assert [rank.state_dict() == trained for rank in net._ranks] == [True, True]
    net.close()


def test_all_devices_forget():
    net = DataParallel(dense(), ["cpu"] * 2)
    learn(net, *batch(net.model, 5))
    net.step()
    before = net.model.arena.theta[1].copy()
    net.forget_evidence(1.25)
    assert (net.model.arena.theta[1] > before).any()
    assert all(rank.state_dict() == net.state_dict() for rank in net._ranks)
    with pytest.raises(ValueError, match="factor must be in"):
        net.forget_evidence(0.5)
    net.close()


@pytest.mark.parametrize("sync_batch_norm", [False, True])
def test_an_error_on_one_device_leaves_the_others_in_step(sync_batch_norm):
    net = DataParallel(with_batch_norm(), ["cpu"] * 2, sync_batch_norm=sync_batch_norm)
    x, y = batch(net.model, 4)
    learn(net, x, y)
    net.step()
    bad = x.copy()
    bad[3, 1] = np.nan
    before = net.state_dict()
    with pytest.raises(ValueError, match="mu_x"):
        net(bad)
    with pytest.raises(ValueError, match="mu_x"):
        net.update_bn([x, bad])
    assert net.state_dict() == before
    learn(net, x, y)
    deltas = np.array(net.input_delta_z_buffer.delta_mu)
    net.step()
    assert net.state_dict() != before and np.isfinite(deltas).all()
    before = net.state_dict()
    learn(net, x, y)
    net.input_delta_z_buffer.delta_mu = np.full(8, np.nan)
    net.backward()
    with pytest.raises(FloatingPointError):
        net.step()
    assert all(rank.state_dict() == before for rank in net._ranks)
    learn(net, x, y)  # all ranks have had the same error
    net.step()
    assert all(rank.state_dict() == net.state_dict() for rank in net._ranks)
    net.close()


def test_a_step_that_one_device_cannot_make_is_the_end():
    net = DataParallel(dense(), ["cpu"] * 2)
    learn(net, *batch(net.model, 4))
    net._ranks[1]._in_no_sync = True
    with pytest.raises(RuntimeError, match=r"step\(\) inside no_sync"):
        net.step()
    with pytest.raises(RuntimeError, match=r"have ended: .* make a new DataParallel of the network"):
        net.step()


def moments_of(net):
    return [array.copy() for key, arrays in net.state_dict().items() if "running" in key for array in arrays]


def test_a_second_batch_replaces_the_first_on_all_devices():
    """Also on those that get no sample of it."""
    states = []
    for batches in ((4, 1), (1,)):
        manual_seed(7)
        net = DataParallel(dense(), ["cpu"] * 2)
        for n in batches:
            learn(net, *batch(net.model, n, n))
        net.step()
        states.append(net.state_dict())
        net.close()
    assert states[0] == states[1]


def test_what_replica_0_is_given_past_it_is_given_to_all():
    """As with PyTorch's DataParallel, whose replicas are made anew for each pass."""
    other = with_batch_norm()
    state = other.state_dict()
    x, y = batch(other, 8)
    learn(other, x, y)
    other.step()
    net = DataParallel(with_batch_norm(), ["cpu", "cpu"], average=False, sync_batch_norm=True)
    learn(net, x, y)  # forgotten on all
    net.model.load_state_dict(state)
    net.step()
    assert all(rank.state_dict() == state for rank in net._ranks)
    net.model.layers[1].training = False
    learn(net, x, y)
    net.step()
    for rank in net._ranks:
        assert np.array_equal(rank.model.layers[1].running_mean, state["BatchNorm2d.1.running"][0])
    with net.model.accumulate(), pytest.raises(RuntimeError, match="does not work with the replicas"):
        learn(net, x, y)
    net.close()


def test_all_devices_have_an_average_and_what_is_assigned():
    net = DataParallel(with_batch_norm(), ["cpu", "cpu"])
    average = nn.PosteriorAverage(net.model)
    x, y = batch(net.model, 8)
    for _ in range(3):
        learn(net, x, y)
        net.step()
        average.update()
    with average.average_parameters():
        np.testing.assert_array_equal(net.predict(x), net.model.predict(x))
        net.update_bn([x])
        np.testing.assert_array_equal(net.predict(x), net.model.predict(x))
    np.testing.assert_array_equal(net.predict(x), net.model.predict(x))
    net.model.layers[0].mu_w = 2 * np.asarray(net.model.layers[0].mu_w)
    net.synchronize()
    np.testing.assert_array_equal(net.predict(x), net.model.predict(x))
    learn(net, x, y)
    net.step()
    one, other = (rank.state_dict() for rank in net._ranks)
    assert one == other
    net.close()


def test_no_backward_behind_inputs_that_were_refused():
    net = DataParallel(dense(), ["cpu"] * 2)
    x, _ = batch(net.model, 4)
    net(x)
    x[3, 1] = np.nan  # the first device has a new batch, the second one has not
    with pytest.raises(ValueError, match="mu_x"):
        net(x)
    with pytest.raises(RuntimeError, match="needs a forward pass"):
        net.backward()
    net.close()


@pytest.mark.parametrize("sync_batch_norm", [False, True])
def test_statistics_of_the_parts_of_all_devices(sync_batch_norm):
    """update_bn: without sync_batch_norm, each part of a batch is normalised by itself; a short batch has two parts."""
    manual_seed(7)
    net = DataParallel(with_batch_norm(), ["cpu"] * 3, sync_batch_norm=sync_batch_norm)
    plain, sizes = with_batch_norm(), (7, 6) if sync_batch_norm else (7, 2, 5)
    plain.load_state_dict(net.state_dict())
    batches = [batch(plain, n, n) for n in sizes]
    parts = [x for x, _ in batches] if sync_batch_norm else [p for x, _ in batches for p in np.array_split(x, 3)]
    expected = plain.update_bn([part for part in parts if len(part)])
    changes = nn.update_bn((pair for pair in [*batches, batches[0]]), net, num_batches=len(batches))
    assert [change.layer for change in changes] == [change.layer for change in expected]
    for mine, theirs in zip(moments_of(net), moments_of(plain), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    assert all(rank.state_dict() == net.state_dict() for rank in net._ranks)
    with pytest.raises(ValueError, match="num_batches must be at least 1"):
        net.update_bn([], 0)

    def failing():
        yield from batches
        raise OSError("no such image")

    with pytest.raises(OSError, match="no such image"):
        net.update_bn(failing())
    assert net.update_bn(batches) == [(change.layer, 0, 1) for change in changes]  # all is as before, and they go on
    net.close()


def test_batches_are_normalised_over_all_devices():
    manual_seed(7)
    one = with_batch_norm()
    manual_seed(7)
    net = DataParallel(with_batch_norm(), ["cpu"] * 2, average=False, sync_batch_norm=True)
    for n in (6, 3):
        for each in (one, net):
            learn(each, *batch(one, n, n))
            each.step()
    for key, arrays in one.state_dict().items():
        for mine, theirs in zip(net.state_dict()[key], arrays, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-6)
    with pytest.raises(ValueError, match="each of 2 devices needs a sample, the batch has 1"):
        net(batch(one, 1)[0])
    assert [a.shape for a in net.predict(batch(one, 1)[0])] == [(1, 2)] * 2
    net.close()


def test_a_network_that_was_closed_is_one_like_any_other():
    net = DataParallel(with_batch_norm(), ["cpu"] * 2)
    net.close()
    before = moments_of(net)
    learn(net.model, *batch(net.model, 4))
    assert not np.array_equal(moments_of(net)[0], before[0])
    net = DataParallel(dense(), ["cpu"] * 2)
    other = DDPSequential(net.model, nn.DDPConfig(backend="serial"))
    net.close()
    assert net.model.trainer is other


def test_options_are_refused_before_threads_begin():
    before = set(threading.enumerate())
    with pytest.raises(TypeError, match=r"^DataParallel: average must be True or False, got 'sum'"):
        DataParallel(dense(), ["cpu"] * 2, average="sum")
    assert set(threading.enumerate()) <= before  # threads of an earlier test may still be ending


def test_no_samples():
    net = DataParallel(dense(), ["cpu"] * 2)
    none = np.zeros((0, 3))
    assert [a.shape for a in net.predict(none)] == [a.shape for a in net.model.predict(none)] == [(0, 2)] * 2
    before = net.model.state_dict()
    for _ in range(2):
        assert [a.shape for a in net(none)] == [(0,)] * 2
        OutputUpdater("cpu").update(net.output_z_buffer, none, 0.1, net.input_delta_z_buffer)
        net.backward()
        net.step()
    assert net.model.state_dict() == before
    rng = np.random.default_rng(0)
    for x in (rng.normal(size=(4, 3)), none, rng.normal(size=(1, 3))):  # goes on behind it
        backpropagate(net, x, np.ones((len(x), 2)), 0.1)
        kept = net.model.state_dict()
        net.step()
        assert (net.model.state_dict() == kept) == (len(x) == 0)
    net.close()


def interrupt_in_thread(rank):
    if rank == 0:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.1)
    return rank


def test_ctrl_c_is_answered_at_the_end_and_the_ranks_go_on():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        pool = ThreadPool(2)
        with pytest.raises(KeyboardInterrupt):
            pool.run(interrupt_in_thread, [(0,), (1,)])
        assert pool.run(str, [(0,), (1,)]) == ["0", "1"]
    finally:
        signal.signal(signal.SIGINT, before)
    pool.close()


def error_on_one_rank(comm):
    """Rank 0 waits for rank 2 long enough to notice that rank 1 has left."""
    if comm.rank == 1:
        raise KeyError("of rank 1")
    if comm.rank == 2:
        time.sleep(0.1)
        comm.send(np.ones(1), 0)
    else:
        comm.receive(np.empty(1), 2)


def late_barrier(comm):
    if comm.rank:
        time.sleep(0.1)
    comm.barrier()


def test_ranks_forget_that_another_has_left_which_is_back():
    pool = ThreadPool(3)
    ranks = [(comm,) for comm in pool.run(initialize, [()] * 3)]
    with pytest.raises(KeyError):
        pool.run(error_on_one_rank, ranks)
    assert pool.run(late_barrier, ranks) == [None] * 3
    pool.close()


def test_one_thread_at_a_time():
    pool, begun, go_on = ThreadPool(2), threading.Event(), threading.Event()

    def work():
        begun.set()
        return go_on.wait(20)

    found = []
    thread = threading.Thread(target=lambda: found.append(pool.run(work, [(), ()])))
    thread.start()
    assert begun.wait(20)
    with pytest.raises(RuntimeError, match="another thread uses the ranks of this process"):
        pool.run(work, [(), ()])
    go_on.set()
    thread.join()
    assert found == [[True, True]] == [pool.run(work, [(), ()])]
    pool.close()


def test_bad_use():
    with pytest.raises(TypeError, match="takes a Sequential, got Linear"):
        DataParallel(Linear(2, 2), ["cpu"])
    with pytest.raises(ValueError, match=r'\["cpu"\] \* 2'):
        DataParallel(dense(), [])
    net = DataParallel(dense(), ["cpu"] * 2)
    with pytest.raises(TypeError, match="copy or pickle its `model`"):
        copy.deepcopy(net)
    with pytest.raises(RuntimeError, match=r"backward\(\) needs a forward pass"):
        net.backward()
    with pytest.raises(ValueError, match="4 values, not a whole number of samples of 3 inputs"):
        net(np.zeros(4))
    net(np.zeros((2, 3)))
    net.input_delta_z_buffer.set_size(2, 1)
    with pytest.raises(ValueError, match="holds 1 x 2 deltas, the batch has 2"):
        net.backward()
    net.close()
    net.close()
    with pytest.raises(RuntimeError, match="the ranks of this process have ended"):
        net.step()


def test_its_threads_end_with_it():
    before, kernels = set(threading.enumerate()), get_threads()  # threads of an earlier test may still be ending
    set_threads(5)
    net = DataParallel(dense(), ["cpu"] * 2)
    own = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("rank ")]
    assert len(own) == 2 and get_threads() == 2
    del net
    for thread in own:
        thread.join(5)
    assert not any(thread.is_alive() for thread in own)
    assert get_threads() == 5
    set_threads(kernels)


@pytest.mark.parametrize("devices", ["cpu", 2])
def test_one_device_is_no_list_of_them(devices):
    with pytest.raises(TypeError, match=r"DataParallel takes a list of devices, as .*, got"):
        DataParallel(dense(), devices)


@pytest.mark.parametrize(
    "make",
    [
        lambda net: DDPSequential(net, DDPConfig(backend="serial")),
        lambda net: PipelineSequential(net, DDPConfig(backend="serial")),
        lambda net: DataParallel(net, ["cpu"]),
    ],
)
@pytest.mark.parametrize("name, value", [("precision", "mixed"), ("input_state_update", True), ("layers", [])])
def test_settings_of_the_network(make, name, value):
    """They would have no effect where they are not looked for."""
    net = make(dense())
    with pytest.raises(AttributeError, match=f"'{name}' is an attribute of the network, not of .*: assign it to"):
        setattr(net, name, value)
    for name in ("average", "model"):  # it would have none either
        with pytest.raises(AttributeError, match=f"'{name}' of a .* is settled by its constructor: make another"):
            setattr(net, name, False)
    with pytest.raises(AttributeError, match=r"has no attribute 'modle', .* did you mean model"):
        net.modle = True
    with pytest.raises(AttributeError, match=r"has no attribute 'learning_rate': TAGI has none"):
        net.learning_rate = 0.1
    net.output_z_buffer = net.output_z_buffer
    for name in ("summary", "inspect", "add_hook"):
        with pytest.raises(AttributeError, match=f"object has no attribute '{name}': it is one of .* `model.{name}`"):
            getattr(net, name)
    with pytest.raises(AttributeError, match=r"object has no attribute 'sumary'$"):
        net.sumary  # noqa: B018


def said_in_a_fork(call) -> str:
    """What a call in a forked process is refused with, or "hangs"."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(5)
        try:
            call()
            os.write(write, b"worked")
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        text = told.read()
    os.waitpid(pid, 0)
    return text or "hangs"


def test_a_forked_process_has_no_threads_to_drive():
    net = DataParallel(dense(), ["cpu"] * 2)
    x = np.ones((4, 3), np.float32)
    expected = net.predict(x)
    assert "was forked" in said_in_a_fork(lambda: net.predict(x))
    assert "make a new DataParallel" in said_in_a_fork(net.step)

    def anew() -> None:
        other = DataParallel(net.model, ["cpu"] * 2)
        assert np.array_equal(other.predict(x), expected)

    assert said_in_a_fork(anew) == "worked"
    assert np.array_equal(net.predict(x), expected)
    net.close()
