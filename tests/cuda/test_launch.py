"""A launch up to the driver: kernels are compiled once and kept on disk, and arguments are as the driver wants them."""

import ctypes
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from pytagi_ddp.kernels.checksummed import read_checksummed
from pytagi_ddp.kernels.tensors import ALL, NO_TENSOR, Heads, State
from tests.cuda.compile_report import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


class Driver:
    """Stands in for `kernels.cuda.runtime.array` and the driver behind it."""

    def __init__(self, capability=(9, 0)):
        self.capability, self.loads, self.launches = capability, [], []

    def device_of(self, array):
        return 1

    def compute_capability(self, device):
        return self.capability

    def Function(self, device, cubin, name):
        self.loads.append((device, name, cubin))
        return lambda *launch: self.launches.append(launch)


@pytest.fixture
def driver(monkeypatch, tmp_path):
    from pytagi_ddp.kernels.cuda.runtime import compile, cubins

    driver = Driver()
    monkeypatch.setattr(compile, "_array", lambda: driver)
    monkeypatch.setattr(cubins, "folder", lambda: tmp_path)
    monkeypatch.setattr(compile, "REGISTRY", {})
    return driver


def make(**options):
    from pytagi_ddp.kernels.cuda.runtime.compile import floats, int32, kernel, optional, thread_index

    @kernel(floats, optional(floats), floats, int32, threads=64, name="launch_test", **options)
    def add(x, y, out, n):
        i = thread_index()
        if i < n:
            out[i] = x[i] if y is None else x[i] + y[i]

    return add


def test_each_variant_is_loaded_once_and_kept(driver, tmp_path):
    add, x = make(), np.ones(5, np.float32)
    for y in (None, x, None, x):
        add.launch(3, x, y, x, 5)
    assert [(device, name) for device, name, _ in driver.loads] == [(1, "launch_test")] * 2
    assert driver.loads[0][2][:4] == b"\x7fELF"
    assert {path.name for path in tmp_path.iterdir()} == {"launch_test-a-sm90.cubin", "launch_test-p-sm90.cubin"}


def test_a_choice_that_nobody_makes_has_no_code(driver):
    add, x = make(one_needed=True), np.ones(5, np.float32)
    assert add.variants() == [(True,)]
    add.launch(1, x, x, x, 5)
    with pytest.raises(ValueError, match=r"launch_test: one of the arguments \(1,\) is needed"):
        add.launch(1, x, None, x, 5)


def test_a_second_process_finds_the_cubin(driver, monkeypatch):
    from pytagi_ddp.kernels.cuda.runtime import compile

    x = np.ones(5, np.float32)
    make().launch(1, x, x, x, 5)
    compile.REGISTRY.clear()
    again = make()
    monkeypatch.setattr(again, "compile", lambda *_: pytest.fail("compiled again"))
    again.launch(1, x, x, x, 5)
    assert driver.loads[0][2] == driver.loads[1][2]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-40] + b"!" + data[-39:], lambda _: b""])
def test_a_damaged_cubin_is_made_again(driver, tmp_path, damage):
    from pytagi_ddp.kernels.cuda.runtime import compile

    x = np.ones(5, np.float32)
    make().launch(1, x, x, x, 5)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    compile.REGISTRY.clear()
    make().launch(1, x, x, x, 5)
    again = driver.loads[1][2]
    assert again[:4] == b"\x7fELF"
    assert read_checksummed(path) == again


def test_cubins_of_another_assembler_are_elsewhere(monkeypatch, tmp_path):
    """As a driver may not load what an assembler of a later CUDA version has made."""
    from pytagi_ddp.kernels.cuda.runtime import cubins

    monkeypatch.setattr(cubins, "cache_folder", lambda: tmp_path)
    made = set()
    for installed in ("12.9.1", "13.5.0"):
        monkeypatch.setattr(cubins, "version", {"numba-cuda": "0.30.4", "cuda-bindings": installed}.get)
        cubins.folder.cache_clear()
        made.add(cubins.folder())
    cubins.folder.cache_clear()
    assert len(made) == 2 and all(folder.stat().st_mode & 0o777 == 0o700 for folder in made)


def test_arguments(driver):
    add, x = make(), np.ones((2, 3), np.float32)
    add.launch((4, 2), x, None, x, 6)
    grid, block, (first, second, third, n) = driver.launches[0]
    assert (grid, block) == ((4, 2), (64,))
    assert first is x
    assert third is x
    assert second == 0
    assert second.dtype == np.uint64  # a null pointer
    assert n == 6
    assert n.dtype == np.int32


def test_prepared_arguments_lie_where_pointers_say(monkeypatch):
    """As the driver reads them: eight bytes for an array or a null pointer, four for a number."""
    from pytagi_ddp.kernels.cuda.runtime import array

    launches = []
    module = SimpleNamespace(load=lambda cubin: None, get_function=lambda name: lambda *a: launches.append(a))
    function = SimpleNamespace(Module=lambda: module, CPointer=lambda address: address)
    runtime = SimpleNamespace(getDevice=lambda: 0)
    monkeypatch.setattr(array, "cupy", SimpleNamespace(cuda=SimpleNamespace(function=function, runtime=runtime)))
    x = SimpleNamespace(data=SimpleNamespace(ptr=(1 << 40) + 512))
    numbers = np.int32(-7), np.uint32(1 << 31), np.float32(0.1)
    arguments = [x, np.uint64(0), *numbers]
    launched = array.Function(0, b"", "kernel")
    launched((2, 3), (64,), arguments)
    launch, (grid, block, pointers) = launched.prepare((2, 3), (64,), arguments)
    launch(grid, block, pointers)
    assert launches[0] == ((2, 3), (64,), arguments) and launches[1][:2] == launches[0][:2]
    assert [ctypes.c_uint64.from_address(p).value for p in pointers[:2]] == [x.data.ptr, 0]
    kinds = ctypes.c_int32, ctypes.c_uint32, ctypes.c_float
    assert [k.from_address(p).value for k, p in zip(kinds, pointers[2:], strict=True)] == [n.item() for n in numbers]


def test_refuses_other_arrays_and_older_gpus(driver):
    from pytagi_ddp.kernels.cuda.runtime.compile import floats, kernel

    add, x = make(), np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match="argument 0 is float64"):
        add.launch(1, x.astype(np.float64), None, x, 6)
    with pytest.raises(ValueError, match=r"argument 2 .* not C-contiguous"):
        add.launch(1, x, None, x.T, 6)
    with pytest.raises(ValueError):
        add.launch(1, x, None, x)
    with pytest.raises(ValueError, match="launch_test: argument 2 is None, and the kernel needs an array"):
        add.launch(1, x, None, None, 6)

    @kernel(floats, threads=32, min_capability=(10, 0), name="newer")
    def newer(x):
        x[0] = np.float32(0)

    with pytest.raises(RuntimeError, match=r"needs compute capability 10\.0, GPU 1 has 9\.0"):
        newer.launch(1, x)


def test_grids_of_many_or_large_arrays(monkeypatch):
    """CUDA takes at most 65,535 blocks along the second and third axis of a grid."""
    from pytagi_ddp.kernels.cuda.layers import attention, elementwise, layer_norm
    from pytagi_ddp.kernels.cuda.runtime.compile import Kernel

    grids = []
    monkeypatch.setattr(Kernel, "launch", lambda kernel, grid, *_: grids.append(grid))
    heads, pixels = 1 << 16, 1 << 22
    x = Heads(State(None, None), 0, 8, 8, 8)
    attention.multiply(x, x, x, heads // 8, 8, 40, 8, 40, ALL)
    elementwise.transpose(np.broadcast_to(np.float32(0), (2, 3, pixels)), None)
    elementwise.transpose(np.broadcast_to(np.float32(0), (2, pixels, 3)), None)
    image = State(np.broadcast_to(np.float32(0), (2, pixels, 3)), None)
    layer_norm.forward(image, None, None, NO_TENSOR, NO_TENSOR, image)
    assert grids == [4 * heads, pixels // 16, pixels // 16, (pixels // 32, 1)]


def test_threads_compile_one_after_the_other():
    """The architecture is a setting of the process, which threads could leave as that of another one."""
    from pytagi_ddp.kernels.cuda.runtime import compile

    before, entered = compile.dispatcher.get_current_device, threading.Event()

    def other():
        with compile._compiling_for((7, 5)):
            entered.set()

    thread = threading.Thread(target=other)
    with compile._compiling_for((8, 0)):
        thread.start()
        assert not entered.wait(0.2)
        assert compile.dispatcher.get_current_device().compute_capability == (8, 0)
    thread.join()
    assert entered.is_set() and compile.dispatcher.get_current_device is before


def test_two_kernels_of_one_name(driver):
    make()
    with pytest.raises(ValueError, match="two kernels are called launch_test"):
        make()


@pytest.mark.parametrize("name", ["0_tiny", "_", "a-b", "ä", "<lambda>"])
def test_names_that_ptx_refuses(driver, name):
    from pytagi_ddp.kernels.cuda.runtime.compile import floats, kernel

    with pytest.raises(ValueError, match=f"kernel '{name}': a name is of letters"):
        kernel(floats, threads=32, name=name)(lambda x: None)
