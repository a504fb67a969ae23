"""What can only be seen on a GPU; `pytest -m gpu` runs these tests and those of `tests/cuda/on_device` there."""

import copy
from functools import partial

import numpy as np
import pytest

from pytagi_ddp import cuda, manual_seed, nn
from pytagi_ddp.distributed.ddp import DDPConfig, DDPSequential
from pytagi_ddp.distributed.engine.placement import SHARED_GPU_VARIABLE, SHARED_GPU_VERSION
from pytagi_ddp.selfcheck import gpu as selfcheck
from tests.mpi import run
from tests.mpi.rank import say
from tests.nn import golden, test_golden
from tests.nn.networks import assert_same, expected_pass, pass_through, random_batch, randomise

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not cuda.is_available(), reason=f"no GPU: {cuda.why_not()}")]


@pytest.mark.filterwarnings("ignore:the running statistics of:UserWarning")  # pytagi's dictionaries have none
@pytest.mark.parametrize("name", golden.NAMES)
def test_recorded_case(name, monkeypatch):
    """Every number of pytagi's, as on the CPU."""
    make = golden.make_network

    def make_on_device(case):
        net = make(case)
        net.to_device("cuda")
        return net

    monkeypatch.setattr(golden, "make_network", make_on_device)
    test_golden.test_recorded_case(name)


def large_dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(301, 515), nn.MixtureReLU(), nn.Linear(515, 130), nn.LayerNorm([130]))


def large_image() -> nn.Sequential:
    first = nn.Conv2d(3, 35, 3, padding=1, in_width=18, in_height=18)
    second = nn.Conv2d(35, 70, 3, stride=2, padding=1, padding_type=2, bias=False)
    return nn.Sequential(
        first, nn.MixtureReLU(), nn.BatchNorm2d(35), second, nn.Tanh(), nn.AvgPool2d(3, 2), nn.Linear(1120, 11)
    )  # no MaxPool2d: of two means that lie closer than TF32 tells apart, either may win


@pytest.mark.parametrize(("make", "samples"), [(large_dense, 37), (large_image, 5)])
@pytest.mark.parametrize(("tf32", "tolerance"), [(False, 5e-5), (True, 1e-2)])
def test_products_of_many_tiles_against_float64(make, samples, tf32, tolerance, monkeypatch):
    monkeypatch.setattr(cuda, "allow_tf32", tf32)
    net = randomise(make())
    net.to_device("cuda")
    batch = random_batch(net, samples)
    assert_same(pass_through(net, *batch), expected_pass(net, *batch), tolerance)


def steps(model, net: nn.Sequential, count: int, samples: int = 16) -> None:
    rng = np.random.default_rng(0)
    updater = nn.OutputUpdater(net.device)
    for _ in range(count):
        model(rng.standard_normal((samples, net.in_shape.size)))
        y = rng.standard_normal((samples, net.out_shape.size))
        updater.update(net.output_z_buffer, y, np.full(y.shape, 0.3), net.input_delta_z_buffer)
        model.backward()
        model.step()


@pytest.mark.timeout(1200)  # where no kernel has been compiled before
def test_everything_that_the_doctor_tries_holds():
    code, rows = selfcheck.report("cuda")
    assert (code, [row for row in rows if row.failed]) == (0, [])
    assert sum(row.result == "ok" for row in rows) > 40


def test_nccl_with_one_rank():
    if not cuda.is_nccl_available():
        pytest.skip("CuPy finds no NCCL")
    net = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    twin = copy.deepcopy(net)
    twin.to_device("cuda")
    ddp = DDPSequential(net, DDPConfig(backend="nccl"))
    assert net.device.startswith("cuda:")
    steps(ddp, net, 3)
    steps(twin, twin, 3)
    assert ddp.state_dict() == twin.state_dict()
    assert ddp.communicator.reduce_calls == 3
    ddp.communicator.close()


def train_on_one_gpu(backend):
    manual_seed(1)
    net = nn.Sequential(nn.Linear(30, 200), nn.MixtureReLU(), nn.Linear(200, 7))
    reference = copy.deepcopy(net)
    net.to_device("cuda:0")
    ddp = DDPSequential(net, DDPConfig(backend=backend, device_ids=[0, 0], timeout=60), average=False)
    rng = np.random.default_rng(0)
    for _ in range(3):
        x, y = rng.standard_normal((16, 30)), rng.standard_normal((16, 7))
        for model, part in ((ddp, slice(8 * ddp.rank, 8 * ddp.rank + 8)), (reference, slice(None))):
            model(x[part])
            noise = np.full(y[part].shape, 0.5)
            nn.OutputUpdater("cpu").update(model.output_z_buffer, y[part], noise, model.input_delta_z_buffer)
            model.backward()
            model.step()
    for mine, other in zip(net.parameters(), reference.parameters(), strict=True):
        assert_same(dict(enumerate(mine)), dict(enumerate(other)), 1e-4)
    states = ddp.communicator.all_gather_object(net.state_dict())
    assert states[0] == states[1]
    say("equal")
    ddp.communicator.close()


def test_two_ranks_on_one_gpu_are_refused_by_nccl(monkeypatch):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    if not cuda.is_nccl_available():
        pytest.skip("CuPy finds no NCCL")
    monkeypatch.delenv(SHARED_GPU_VARIABLE, raising=False)
    result = run.mpirun(partial(train_on_one_gpu, backend="nccl"), timeout=120)
    assert result.returncode != 0 and not result.stdout
    assert "ranks 0 and 1 are on one GPU" in result.stderr
    assert cuda.get_device_uuid(0) in result.stderr


@pytest.mark.parametrize("backend", ["mpi", "nccl"])
def test_two_ranks_share_one_gpu_and_equal_one_process(backend):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    variables = {}
    if backend == "nccl":
        from pytagi_ddp.kernels.cuda.runtime import array

        if not cuda.is_nccl_available() or array.nccl().get_version() < SHARED_GPU_VERSION:
            pytest.skip("NCCL below 2.30 takes one rank on each GPU")
        variables = {SHARED_GPU_VARIABLE: "1"}
    result = run.mpirun(partial(train_on_one_gpu, backend=backend), timeout=120, env=variables)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "equal\n" * 2
