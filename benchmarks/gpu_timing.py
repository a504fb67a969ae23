"""Times on a GPU: the matrix peak, single layers, whole training steps, and a step by kernel."""

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from benchmarks.training_step import Workload
from pytagi_ddp import cuda
from pytagi_ddp.kernels.cuda.layers import conv2d, linear
from pytagi_ddp.kernels.cuda.runtime.array import arrays, compute_capability, cupy
from pytagi_ddp.kernels.cuda.runtime.recorder import recording, replay
from pytagi_ddp.kernels.tensors import Delta, State, Tensor

PEAK_SIZE = 8192
WAYS = {"walked": (False, False), "replayed": (True, False), "graphs": (True, True)}  # replay_launches, use_graphs
STEPS = ("mlp-128-b32", "mlp-128-b512", "mlp-4096-b256", "mnist-cnn-b128", "resnet18-b128")
RESNET_BATCHES = (128, 256, 512)
LINEAR = [  # batch, inputs, outputs, first layer
    (256, 4096, 4096, False),
    (32, 784, 128, True),
    (32, 128, 128, False),
    (512, 784, 128, True),
]
CONV2D = [  # batch, height and width, channels, outputs, kernel, stride, zeros before and after, first layer
    (32, 32, 64, 64, 3, 1, 1, 1, False),
    (32, 16, 128, 128, 3, 1, 1, 1, False),
    (128, 8, 256, 256, 3, 1, 1, 1, False),
    (128, 4, 512, 512, 3, 1, 1, 1, False),
    (16, 4, 512, 512, 3, 1, 1, 1, False),
    (32, 16, 128, 256, 3, 2, 0, 1, False),
    (32, 16, 128, 256, 2, 2, 0, 0, False),
    (32, 32, 3, 64, 3, 1, 1, 1, True),
    (128, 28, 1, 16, 4, 1, 1, 1, True),
    (128, 13, 16, 32, 5, 1, 0, 0, False),
    (32, 16, 32, 32, 5, 1, 2, 2, False),
    (32, 16, 64, 64, 5, 1, 2, 2, False),
    (32, 32, 64, 64, 4, 2, 1, 1, False),
    (16, 7, 512, 512, 3, 1, 1, 1, False),
]


def seconds(function: Callable[[], object], at_least: float = 0.5) -> float:
    """Time of one call, the GPU's work included: the mean over calls that fill `at_least` seconds, after three."""
    for _ in range(3):
        function()
    synchronize()
    start, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - start < at_least:
        for _ in range(10):
            function()
        count += 10
        synchronize()
    return (time.perf_counter() - start) / count


def synchronize() -> None:
    arrays(cuda.get_current_device()).synchronize()


def matrix_peak(tf32: bool) -> float:
    """Operations per second of cuBLAS for a product of two square matrices, float32 or TF32."""
    from cupy._core import _routines_linalg as linalg

    before = linalg.get_compute_type(np.float32)
    linalg.set_compute_type(np.float32, linalg.COMPUTE_TYPE_TF32 if tf32 else linalg.COMPUTE_TYPE_FP32)
    try:
        rng = np.random.default_rng(0)
        a, b = (cupy.asarray(rng.random((PEAK_SIZE, PEAK_SIZE), np.float32)) for _ in range(2))
        out = cupy.empty_like(a)
        return 2 * PEAK_SIZE**3 / seconds(lambda: cupy.matmul(a, b, out=out), 2)
    finally:
        linalg.set_compute_type(np.float32, before)


@cache
def peaks() -> dict[bool, float]:
    """The matrix peak for float32 (False) and, where there are tensor cores for it, TF32 (True)."""
    return {tf32: matrix_peak(tf32) for tf32 in types()}


def types() -> list[bool]:
    """Whether to use TF32: not, and where there are tensor cores for it."""
    return [False, True] if compute_capability(cuda.get_current_device()) >= (8, 0) else [False]


class OnDevice:
    """A module of kernels, called with NumPy arrays: copies of them, made once, take their place."""

    def __init__(self, module: Any):
        self._module = module
        self._placed: dict[tuple, tuple] = {}  # by address and size; the original is kept, so that no other is there

    def __getattr__(self, name: str) -> Callable:
        function = getattr(self._module, name)
        return lambda *arguments: function(*map(self._place, arguments))

    def _place(self, argument: Any) -> Any:
        if isinstance(argument, tuple):
            return type(argument)(*map(self._place, argument))
        if not isinstance(argument, np.ndarray):
            return argument
        key = (argument.ctypes.data, argument.shape)
        if key not in self._placed:
            self._placed[key] = argument, arrays(cuda.get_current_device()).place(argument)
        return self._placed[key][1]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def calls(
    module: Any,
    shape_in: tuple[int, ...],
    shape_out: tuple[int, ...],
    shape_w: tuple[int, ...],
    geometry: tuple[int, ...],
    first: bool,
) -> tuple[Callable[[], None], Callable[[], None], int]:
    """The forward and the backward call of one layer, and the multiply-adds of one of its products."""
    mu, w, b, delta_mu = (normal(*shape) for shape in (shape_in, shape_w, shape_w[:1], shape_out))
    x, delta = State(mu, None if first else mu**2, mu), Delta(delta_mu, -(delta_mu**2))
    weights = Tensor(w, w**2, *np.empty((2, *w.shape), np.float32))
    bias = Tensor(b, b, *np.empty((2, *b.shape), np.float32))
    out = State(*np.empty((2, *shape_out), np.float32))
    in_delta = None if first else Delta(*np.empty((2, *shape_in), np.float32))

    def forward() -> None:
        module.forward(x, weights, bias, out, *geometry)

    def backward() -> None:
        module.backward(x, delta, weights, bias, in_delta, *geometry, False)

    return forward, backward, delta_mu.size // shape_w[0] * w.size


def products() -> Iterator[tuple[str, list[Callable[[], None]], list[float]]]:
    """The layers of `LINEAR` and `CONV2D`: name, forward and backward call, and the operations of each."""
    for batch, inputs, outputs, first in LINEAR:
        *directions, macs = calls(OnDevice(linear), (batch, inputs), (batch, outputs), (outputs, inputs), (), first)
        yield f"Linear {inputs} to {outputs}, batch {batch}", directions, flops_of(macs, first)
    for batch, size, channels, outputs, kernel, stride, before, after, first in CONV2D:
        out = (size + before + after - kernel) // stride + 1
        shapes = (batch, size, size, channels), (batch, out, out, outputs), (outputs, channels, kernel, kernel)
        *directions, macs = calls(OnDevice(conv2d), *shapes, (stride, before), first)
        name = f"Conv {channels} to {outputs}, k{kernel} s{stride}, {size}x{size}, batch {batch}"
        yield name, directions, flops_of(macs, first)


def flops_of(macs: float, first: bool) -> list[float]:
    """Operations of the products of one layer, forward and backward; the first one needs 2 and 2 of 3 and 4."""
    return [2.0 * macs * count for count in ((2, 2) if first else (3, 4))]


def device_seconds(call: Callable[[], None], repeat: int = 10) -> float:
    """Time of what `call` launches, on the GPU alone: the launches are captured in a CUDA graph, `repeat` times."""
    call()  # compiles, and makes the workspace
    with recording() as work:
        call()
    stream = cupy.cuda.Stream(non_blocking=True)
    synchronize()
    with stream:
        stream.begin_capture()
        try:
            for _ in range(repeat):
                replay(work)
        finally:
            graph = stream.end_capture()
        return seconds(graph.launch, 0.1) / repeat


def report_layers(say: Callable[[str], None]) -> list[dict]:
    """The kernels of single layers, forward and backward, against the matrix peak of cuBLAS."""
    rows, peak = [], peaks()
    say(f"{'kernels of a layer':48}{'type':>6}{'forward':>34}{'backward':>34}")
    for name, directions, flops in products():
        for cuda.allow_tf32 in peak:
            line = f"{name:48}{'TF32' if cuda.allow_tf32 else 'fp32':>6}"
            for direction, call, operations in zip(("forward", "backward"), directions, flops, strict=True):
                time_taken = device_seconds(call)
                rate = operations / time_taken
                share = rate / peak[cuda.allow_tf32]
                row = {"layer": name, "tf32": cuda.allow_tf32, "direction": direction}
                rows.append(row | {"seconds": time_taken, "of peak": share})
                line += f"{time_taken * 1e3:10.3f} ms {rate / 1e12:6.1f} TFLOP/s {share:5.0%} "
            say(line)
    cuda.allow_tf32 = False
    return rows


def report_steps(say: Callable[[str], None]) -> list[dict]:
    """Whole steps walked in Python, replayed, and as graphs; host: the time until a step is queued."""
    rows, peak = [], peaks()
    say(
        f"{'whole step':16}{'type':>6}{'how':>10}{'step':>12}{'host':>11}{'launches':>10}{'samples/s':>12}"
        f"{'TFLOP/s':>10}{'of peak':>9}{'memory':>10}"
    )
    for name in (*STEPS, *(f"resnet18-b{batch}" for batch in RESNET_BATCHES[1:])):
        job = Workload(name, "cuda")
        job.step()
        with recording() as work:
            job.step()
        for cuda.allow_tf32, (how, switches) in itertools.product(peak, WAYS.items()):
            cuda.replay_launches, cuda.use_graphs = switches
            time_taken, host = seconds(job.step), host_seconds(job.step)
            rate = job.floor_flops / time_taken
            row = {"step": name, "tf32": cuda.allow_tf32, "how": how, "seconds": time_taken, "host seconds": host}
            rows.append(row | {"launches": len(work), "of peak": rate / peak[cuda.allow_tf32]})
            say(
                f"{name:16}{'TF32' if cuda.allow_tf32 else 'fp32':>6}{how:>10}"
                f"{time_taken * 1e3:9.2f} ms{host * 1e3:8.2f} ms{len(work):10}"
                f"{job.batch / time_taken:12.0f}{rate / 1e12:10.1f}{rate / peak[cuda.allow_tf32]:9.0%}"
                f"{cupy.get_default_memory_pool().total_bytes() / 2**30:6.2f} GiB"
            )
        cuda.allow_tf32, cuda.replay_launches, cuda.use_graphs = False, True, False
        del job, work
        cupy.get_default_memory_pool().free_all_blocks()
    return rows


def host_seconds(step: Callable[[], None]) -> float:
    """Time until one step is queued, with nothing queued before it."""
    times = []
    for _ in range(7):
        synchronize()
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    synchronize()
    return statistics.median(times)


def report_kernels(tf32: bool, say: Callable[[str], None], name: str = "resnet18-b128") -> dict[str, dict]:
    """The launches of one step one by one, summed by kernel; returns launches and seconds of each."""
    cuda.allow_tf32 = tf32
    job = Workload(name, "cuda")
    job.step()
    with recording() as work:
        job.step()
    spent: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for function, arguments in work:
        times = []
        for _ in range(5):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            function(*arguments)
            end.record()
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, end))
        spent[function.__name__] += min(times)
        count[function.__name__] += 1
    cuda.allow_tf32 = False
    total = sum(spent.values())
    say(f"{name} by kernel, {'TF32' if tf32 else 'fp32'}, {total:.2f} ms in {len(work)} launches and copies:")
    for kernel in sorted(spent, key=spent.__getitem__, reverse=True):
        say(f"  {kernel:40}{count[kernel]:5} x{spent[kernel]:10.3f} ms{spent[kernel] / total:7.1%}")
    return {kernel: {"launches": count[kernel], "seconds": spent[kernel] / 1e3} for kernel in spent}
