"""What the library says about GPUs where there is none, and what it refuses to do."""

import copy
import ctypes
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from pytagi_ddp import cuda, nn
from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.kernels.cuda import runtime as cuda_kernels
from pytagi_ddp.kernels.cuda.runtime.arrival import Arrival
from tests.cuda.ptx.emulator import missing

ROOT = Path(__file__).parents[2]
needs_no_gpu = pytest.mark.skipif(cuda.is_available(), reason="this machine has a GPU")


@needs_no_gpu
def test_nothing_is_promised_without_a_gpu():
    assert cuda.why_not()
    assert not cuda.is_available() and not cuda.is_nccl_available()
    assert cuda.get_device_count() == 0 and cuda.get_current_device() == -1
    assert not cuda.is_device_available(0) and not cuda.set_device(0)
    for ask in (cuda.get_device_properties, cuda.get_device_memory, cuda.get_device_uuid):
        with pytest.raises(RuntimeError, match="no GPU 0: ") as error:
            ask(0)
        assert cuda.why_not() in str(error.value)


def test_who_has_no_gpu_is_not_sent_to_install_packages(monkeypatch):
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    monkeypatch.setattr(cuda, "CDLL", lambda name: ctypes.CDLL(f"no such library: {name}"))
    assert cuda.why_not() == "this machine has no driver for NVIDIA GPUs (libcuda); networks run on the CPU"


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    monkeypatch.setattr(cuda, "CDLL", driver(13010))
    assert cuda.why_not() == ("not installed: cupy-cuda13x[ctk], numba-cuda[cu13]; try pip install 'pytagi-ddp[cuda]'")
    monkeypatch.setattr(cuda, "CDLL", driver(12040))
    assert cuda.why_not() == (
        "not installed: cupy-cuda12x[ctk], numba-cuda[cu12]; try pip install 'pytagi-ddp[cuda12]'"
    )
    assert not cuda.is_available()


def driver(version: int):
    """Stands for `CDLL`: a driver for that version of CUDA."""

    def get_version(into) -> int:
        into._obj.value = version
        return 0

    return lambda name: SimpleNamespace(cuDriverGetVersion=get_version)


def test_a_driver_that_is_too_old_for_all_is_named(monkeypatch):
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    monkeypatch.setattr(cuda, "CDLL", driver(11080))
    assert cuda.driver_version() == 11080
    assert cuda.why_not().startswith("the driver is for CUDA 11.8, and at least 12.0 is needed: install a driver")


class NoStart(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("version", "visible", "remedy"),
    [
        (12080, None, "; the packages are for CUDA 13, the driver for 12.8: update the driver, or, in a new virtual "
         "environment, pip install 'pytagi-ddp[cuda12]'"),
        (11080, None, "; the driver is for CUDA 11.8, and at least 12.0 is needed: install a driver of version 525 or "
         "later"),
        (13000, "MIG-7", "; CUDA_VISIBLE_DEVICES is 'MIG-7': it has to name GPUs by their index or as `nvidia-smi -L` "
         "prints them, GPU-... or MIG-..."),
        (13000, None, ""),
    ],
)  # fmt: skip
def test_why_cuda_does_not_start(version, visible, remedy, monkeypatch):
    def count() -> int:
        raise NoStart("no device")

    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=NoStart, runtimeGetVersion=lambda: 13000)
    monkeypatch.setattr(cuda, "find_spec", lambda name: name)
    monkeypatch.setattr(cuda, "_cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    monkeypatch.setattr(cuda, "CDLL", driver(version))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert cuda.why_not() == f"CUDA does not start: no device{remedy}"


# Asks about GPUs where the package named by the first argument cannot be imported, with each kind of error.
BROKEN = """
import builtins, os, sys
from pytagi_ddp import cuda
from pytagi_ddp.distributed import create_communicator
for name in ("ImportError", "OSError", "RuntimeError", "AttributeError"):
    os.environ["ERROR"], cuda._failure = name, None
    for module in [module for module in sys.modules if module.startswith(("cupy", "pytagi_ddp.kernels.cuda."))]:
        del sys.modules[module]
    reason = cuda.why_not()
    assert f"{sys.argv[1]} does not load: {name}: libcudart.so.12 is not there;" in reason, reason
    assert reason == cuda.why_not() and not cuda.is_available() and not cuda.is_nccl_available()
    assert (cuda.get_device_count(), cuda.get_current_device(), cuda.set_device(0)) == (0, -1, False)
    for use in (lambda: create_communicator("nccl"), lambda: cuda.get_device_properties(0)):
        try:
            use()
        except RuntimeError as error:  # a LaunchError is one
            assert reason in str(error), error
        else:
            raise AssertionError("no error")
"""
# As CuPy does it: the reason stands behind lines of dashes and advice.
RAISES = """
import builtins, os
try:
    raise getattr(builtins, os.environ["ERROR"])("libcudart.so.12 is not there")
except Exception as error:
    raise ImportError("=======", "Failed to import CuPy.", f"Original error: {error}") from error
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "file"), [("CuPy", "cupy/__init__.py"), ("numba-cuda", "numba_cuda/numba/cuda/__init__.py")]
)
def test_a_package_that_does_not_load_is_named_with_the_reason(package, file, tmp_path):
    for name in ("cupy/__init__.py", "numba_cuda/__init__.py", file):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(RAISES if name == file else "")
    if package == "CuPy":  # the real numba-cuda
        if importlib.util.find_spec("numba_cuda") is None:
            pytest.skip("numba-cuda is not installed")
        shutil.rmtree(tmp_path / "numba_cuda")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-c", BROKEN, package]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_a_numpy_that_is_too_new_for_numba_cuda_is_named(tmp_path):
    """NumPy 2.5 has removed a function that numba-cuda 0.30 uses where it compiles the first kernel."""
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed")
    (tmp_path / "cupy.py").touch()
    program = "import numpy; vars(numpy).pop('row_stack', 0); from pytagi_ddp import cuda; print(cuda.why_not())"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert "numba-cuda does not load: AttributeError: module 'numpy' has no attribute 'row_stack'; " in result.stdout


def test_a_package_that_is_only_a_folder(monkeypatch):
    monkeypatch.setattr(cuda, "_failure", None)
    monkeypatch.setattr(cuda, "find_spec", lambda name: name)
    monkeypatch.setattr(cuda, "_cupy", lambda: ModuleType("cupy"))
    assert " does not load: AttributeError: module 'cupy' has no attribute 'cuda'; " in str(cuda.why_not())


def test_an_nccl_that_does_not_load_is_none(monkeypatch):
    def nccl():
        raise ImportError("libnccl.so.2")

    monkeypatch.setattr(cuda, "why_not", lambda: None)
    monkeypatch.setitem(vars(cuda_kernels), "array", SimpleNamespace(nccl=nccl))
    assert not cuda.is_nccl_available()


def test_a_missing_nccl_is_an_answer_and_no_warning(monkeypatch):
    def nccl():
        warnings.warn("nccl library could not be loaded", stacklevel=1)
        return SimpleNamespace(available=False)

    monkeypatch.setattr(cuda, "why_not", lambda: None)
    monkeypatch.setitem(vars(cuda_kernels), "array", SimpleNamespace(nccl=nccl))
    assert not cuda.is_nccl_available()


@pytest.mark.parametrize(
    ("name", "prefix"), [("NVIDIA H100 PCIe, compute", "GPU"), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb, compute", "MIG")]
)
@pytest.mark.parametrize("major", [12, 13])
def test_an_identity_has_all_its_bytes_and_is_that_of_a_part(name, prefix, major, monkeypatch):
    """Zero bytes included, which end the text that CuPy reports. CUDA 12 has two functions, one for whole GPUs."""
    part, whole = (SimpleNamespace(bytes=bytes([0, 17, 0, *range(k, 13 + k)])) for k in (0, 1))
    driver = SimpleNamespace(CUresult=SimpleNamespace(CUDA_SUCCESS=0), cuInit=lambda flags: (0,))
    driver.cuDeviceGetUuid = lambda index: (0, part)
    if major == 12:
        driver.cuDeviceGetUuid, driver.cuDeviceGetUuid_v2 = lambda index: (0, whole), driver.cuDeviceGetUuid
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=driver))
    monkeypatch.setattr(cuda, "get_device_count", lambda: 1)
    monkeypatch.setattr(cuda, "get_device_properties", lambda index: name)
    assert cuda.get_device_uuid(0) == f"{prefix}-00110000-0102-0304-0506-0708090a0b0c"
    driver.cuInit = lambda flags: (SimpleNamespace(name="CUDA_ERROR_NO_DEVICE"),)
    with pytest.raises(RuntimeError, match="GPU 0 does not tell its UUID: CUDA_ERROR_NO_DEVICE"):
        cuda.get_device_uuid(0)


@pytest.mark.parametrize("name", ["cuda:2", "cuda:7"])
def test_a_gpu_that_is_not_there_is_named(name, monkeypatch):
    monkeypatch.setattr(cuda, "why_not", lambda: None)
    monkeypatch.setattr(cuda, "get_device_count", lambda: 2)
    with pytest.raises(RuntimeError, match=f"device '{name}' cannot be used: there are 2 GPUs"):
        nn.Sequential(nn.Linear(2, 1)).to_device(name)
    with pytest.raises(RuntimeError, match="no GPU 2: there are 2"):
        cuda.get_device_memory(2)


def test_defaults_of_options():
    assert cuda.allow_tf32 is False and cuda.use_graphs is False and cuda.replay_launches is True


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "", None, 0])
def test_unknown_devices(name):
    with pytest.raises(ValueError, match="unknown device"):
        get_kernels(name)


def test_a_device_has_one_name():
    names = {"cuda:0": "cuda:0", "cuda:01": "cuda:1", "cuda:10": "cuda:10", "cpu": "cpu"}
    assert {name: cuda.device_name(name) for name in names} == names


@needs_no_gpu
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_network_stays_where_it_is_if_it_cannot_move(name):
    net = nn.Sequential(nn.Linear(2, 1))
    before = net.state_dict()
    with pytest.raises(RuntimeError, match="cannot be used: ") as error:
        net.to_device(name)
    assert cuda.why_not() in str(error.value)
    assert net.device == "cpu" and net.state_dict() == before
    with pytest.raises(RuntimeError, match="cannot be used"):
        nn.OutputUpdater(name)


def test_the_processor_is_always_there():
    assert get_kernels("cpu") is get_kernels("cpu")
    net = nn.Sequential(nn.Linear(2, 1))
    arena = net.arena
    net.to_device("cpu")
    assert net.arena is arena


@pytest.mark.slow
@needs_no_gpu
@pytest.mark.timeout(600)
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_launches_of_a_step_are_counted_without_a_gpu():
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-m", "benchmarks.gpu"], cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    first, second, *_ = lines = run.stdout.splitlines()
    assert first == f"no GPU: no times ({cuda.why_not()})" and second.endswith("exit code 0")
    rows = {name: (int(launches), *map(float, times[::2])) for name, launches, _, *times in map(str.split, lines[3:])}
    assert 8 <= rows["mlp-128-b32"][0] <= 20
    launches, walked, replayed = rows["resnet18-b16"]
    assert 160 <= launches <= 240
    assert replayed < walked / 4  # microseconds of the host


def test_an_arrival_is_used_like_the_array_it_becomes():
    waits = []
    arrival = Arrival(np.arange(6, dtype=np.float32), lambda: waits.append(1))
    assert not waits
    assert arrival.shape == (6,) and waits == [1]
    assert isinstance(np.asarray(arrival), np.ndarray) and np.asarray(arrival, float).dtype == float
    assert isinstance(arrival + 1, np.ndarray) and (2 * arrival)[3] == 6 and len(arrival) == 6
    assert arrival.reshape(2, 3).sum() == 15 and np.concatenate([arrival, arrival]).size == 12
    assert np.mean(arrival) == 2.5 and list(arrival)[-1] == 5
    assert not Arrival(np.zeros(1, np.float32), None) and Arrival(np.ones(1, np.float32), None)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(arrival)
    out = Arrival(np.zeros(6, np.float32), None)
    np.add(arrival, 1, out=out)
    out[0] = 9
    np.testing.assert_array_equal(out, [9, 2, 3, 4, 5, 6])
    for twin in (copy.deepcopy(arrival), pickle.loads(pickle.dumps(arrival))):
        np.testing.assert_array_equal(twin, arrival)
    assert waits == [1]
