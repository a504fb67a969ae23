"""Times on a GPU: the matrix peak, single layers, whole training steps, and a step by kernel."""

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.products import CONV2D, LINEAR
from benchmarks.training_step import Workload
from pytagi_ddp import cuda
from pytagi_ddp.kernels.cuda.array import arrays, cupy
from pytagi_ddp.kernels.cuda.recorder import recording
from pytagi_ddp.nn import Conv2d, Linear, OutputUpdater, Sequential

PEAK_SIZE = 8192
STEPS = ("mlp-128-b32", "mlp-128-b512", "mlp-4096-b256", "mnist-cnn-b128", "resnet18-b128")
RESNET_BATCHES = (128, 256, 512)


def seconds(function: Callable[[], object], at_least: float = 0.5) -> float:
    """Time of one call, the GPU's work included: the mean over calls that fill `at_least` seconds, after three."""
    for _ in range(3):
        function()
    synchronize()
    start, calls = time.perf_counter(), 0
    while calls < 3 or time.perf_counter() - start < at_least:
        for _ in range(10):
            function()
        calls += 10
        synchronize()
    return (time.perf_counter() - start) / calls


def synchronize() -> None:
    arrays(cuda.get_current_device()).synchronize()


def matrix_peak(tf32: bool) -> float:
    """Operations per second of cuBLAS for a product of two square matrices, float32 or TF32."""
    from cupy._core import _routines_linalg as linalg

    before = linalg.get_compute_type(np.float32)
    linalg.set_compute_type(np.float32, linalg.COMPUTE_TYPE_TF32 if tf32 else linalg.COMPUTE_TYPE_FP32)
    try:
        a, b = (cupy.random.random((PEAK_SIZE, PEAK_SIZE), np.float32) for _ in range(2))
        out = cupy.empty_like(a)
        return 2 * PEAK_SIZE**3 / seconds(lambda: cupy.matmul(a, b, out=out), 2)
    finally:
        linalg.set_compute_type(np.float32, before)


def peaks() -> dict[bool, float]:
    """The matrix peak for float32 (False) and, where there are tensor cores for it, TF32 (True)."""
    major = int(cupy.cuda.Device().compute_capability[:-1])
    return {tf32: matrix_peak(tf32) for tf32 in (False, True) if major >= 8 or not tf32}


class Step:
    """A network on the GPU, a batch of random numbers, and one training step with them."""

    def __init__(self, net: Sequential, batch: int, first: bool):
        rng = np.random.default_rng(0)
        self.net, self.batch, self._first = net, batch, first
        net.to_device("cuda")
        net.input_state_update = not first  # a layer inside a network: variances come in, deltas go out
        self._x = rng.standard_normal((batch, net.in_shape.size), np.float32)
        self._var = None if first else np.full_like(self._x, 0.1)
        self._y = rng.standard_normal(batch * net.out_shape.size, np.float32)
        self._updater = OutputUpdater(net.device)

    def forward(self) -> None:
        self.net(self._x, self._var)

    def learn(self) -> None:
        net = self.net
        self._updater.update(net.output_z_buffer, self._y, np.ones_like(self._y), net.input_delta_z_buffer)
        net.backward()
        net.step()

    def __call__(self) -> None:
        self.forward()
        self.learn()

    @property
    def flops(self) -> float:
        """Operations of the matrix products of one step."""
        total, first = 0, self._first
        for _, leaf in self.net.named_leaves():
            if isinstance(leaf, Linear | Conv2d):
                positions = leaf.out_height * leaf.out_width if isinstance(leaf, Conv2d) else 1
                total += (4 if first else 7) * 2 * self.batch * positions * leaf.num_weights
                first = False
        return total


def single_layers() -> Iterator[tuple[str, Step]]:
    """The layers of `benchmarks.products`, each as a network of its own."""
    for batch, inputs, outputs, first in LINEAR:
        yield f"Linear {inputs} to {outputs}, batch {batch}", Step(Sequential(Linear(inputs, outputs)), batch, first)
    for batch, size, channels, outputs, kernel, stride, before, after, first in CONV2D:
        kind = 1 if before else 2
        conv = Conv2d(channels, outputs, kernel, True, stride, max(before, after), kind, size, size)
        yield f"Conv {channels} to {outputs}, k{kernel} s{stride}, {size}x{size}", Step(Sequential(conv), batch, first)


def report_layers(peak: dict[bool, float], say: Callable[[str], None]) -> None:
    say(f"{'layer, forward and backward':44}" + "".join(f"{'TF32' if tf32 else 'fp32':>30}" for tf32 in peak))
    for name, step in single_layers():
        line = f"{name:44}"
        for cuda.allow_tf32 in peak:
            time_taken = seconds(step)
            rate = step.flops / time_taken
            line += f"{time_taken * 1e3:10.3f} ms {rate / 1e12:6.1f} TFLOP/s {rate / peak[cuda.allow_tf32]:4.0%}"
        say(line)
    cuda.allow_tf32 = False


def report_steps(peak: dict[bool, float], say: Callable[[str], None]) -> None:
    """Whole steps with and without graphs; host: the time until a step is queued."""
    say(
        f"{'whole step':16}{'type':>6}{'graphs':>8}{'step':>12}{'host':>11}{'launches':>10}{'samples/s':>12}"
        f"{'TFLOP/s':>10}{'of peak':>9}{'memory':>10}"
    )
    for name in (*STEPS, *(f"resnet18-b{batch}" for batch in RESNET_BATCHES[1:])):
        base, _, batch = name.rpartition("-b")
        workload = Workload(name if name in STEPS else f"{base}-b128")
        step = Step(workload.net, int(batch), first=True)
        step()
        with recording() as work:
            step()
        for cuda.allow_tf32, cuda.use_graphs in itertools.product(peak, (False, True)):
            time_taken, rate = seconds(step), 0.0
            rate = step.flops / time_taken
            say(
                f"{name:16}{'TF32' if cuda.allow_tf32 else 'fp32':>6}{'yes' if cuda.use_graphs else 'no':>8}"
                f"{time_taken * 1e3:9.2f} ms{host_seconds(step) * 1e3:8.2f} ms{len(work):10}"
                f"{step.batch / time_taken:12.0f}{rate / 1e12:10.1f}{rate / peak[cuda.allow_tf32]:9.0%}"
                f"{cupy.get_default_memory_pool().total_bytes() / 2**30:6.2f} GiB"
            )
        cuda.allow_tf32 = cuda.use_graphs = False
        del step, workload, work
        cupy.get_default_memory_pool().free_all_blocks()


def host_seconds(step: Step) -> float:
    """Time until one step is queued, with nothing queued before it."""
    times = []
    for _ in range(7):
        synchronize()
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    synchronize()
    return statistics.median(times)


def report_kernels(say: Callable[[str], None], name: str = "resnet18-b128") -> None:
    """The launches of one step one by one, summed by kernel."""
    step = Step(Workload(name).net, int(name.rpartition("-b")[2]), first=True)
    step()
    with recording() as work:
        step()
    spent, count = defaultdict(float), defaultdict(int)
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
    total = sum(spent.values())
    say(f"{name} by kernel, {total:.2f} ms in {len(work)} launches and copies:")
    for kernel in sorted(spent, key=spent.get, reverse=True):
        say(f"  {kernel:40}{count[kernel]:5} x{spent[kernel]:10.3f} ms{spent[kernel] / total:7.1%}")
