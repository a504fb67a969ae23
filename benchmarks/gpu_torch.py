"""PyTorch as a yardstick: cuDNN's convolutions, the ordinary training step of the same network, and steps of TAGI.

An ordinary layer has 3 products where TAGI has 7. TAGI by PyTorch's operations is that of `benchmarks.peers`.
"""

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

from benchmarks.gpu_timing import CONV2D, RESNET_BATCHES, seconds, types
from benchmarks.workloads import find


def report_torch(say: Callable[[str], None]) -> None:
    """Times of convolutions by cuDNN and of an SGD step of ResNet18, float32 and TF32."""
    if find_spec("torch") is None:
        say("PyTorch is not installed: no yardstick")
        return
    import torch

    from benchmarks.peers.torch_sgd import LAYERS

    torch.backends.cudnn.benchmark = True  # cuDNN picks its fastest algorithm
    report_convolutions(say)
    net = find("resnet18-b128").build(LAYERS).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    rng = np.random.default_rng(0)
    for batch in RESNET_BATCHES:
        x = torch.from_numpy(rng.standard_normal((batch, 3, 32, 32), np.float32)).cuda()
        y = torch.from_numpy(rng.integers(0, 10, batch)).cuda()

        def step(x: torch.Tensor = x, y: torch.Tensor = y) -> None:
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            torch.cuda.synchronize()

        for tf32 in types():
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
            time_taken = seconds(step)
            kind = "TF32" if tf32 else "fp32"
            say(
                f"PyTorch ResNet18, batch {batch}, {kind}: {time_taken * 1e3:.2f} ms, {batch / time_taken:.0f} images/s"
            )

    report_tagi(say)


def report_tagi(say: Callable[[str], None], workload: str = "resnet18-b128") -> None:
    """A training step of TAGI by PyTorch's operations."""
    import torch

    from benchmarks.peers import torch_tagi

    torch.set_default_device("cuda")
    try:
        peer = torch_tagi.Step(workload, 1)
        peer.x, peer.var, peer._y = (None if a is None else a.cuda() for a in (peer.x, peer.var, peer._y))
        for tf32 in types():
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
            time_taken = seconds(lambda: (peer.step(), torch.cuda.synchronize()))
            say(f"PyTorch TAGI, {workload}, {'TF32' if tf32 else 'fp32'}: {time_taken * 1e3:.2f} ms")
    finally:
        torch.set_default_device(None)


def report_convolutions(say: Callable[[str], None]) -> None:
    """The convolutions of `CONV2D` by cuDNN, channels last: one product forward, two backward."""
    import torch

    for batch, size, channels, outputs, kernel, stride, before, after, first in CONV2D:
        x = torch.randn(batch, channels, size + before + after, size + before + after, device="cuda")
        x = x.to(memory_format=torch.channels_last).requires_grad_(not first)
        conv = torch.nn.Conv2d(channels, outputs, kernel, stride).cuda().to(memory_format=torch.channels_last)
        y = conv(x)
        delta = torch.randn_like(y)
        wanted = [conv.weight, conv.bias] if first else [x, conv.weight, conv.bias]
        flops = 2.0 * y.numel() * channels * kernel**2

        def forward(x: torch.Tensor = x, conv: torch.nn.Module = conv) -> None:
            with torch.no_grad():
                conv(x)
            torch.cuda.synchronize()

        def backward(y: torch.Tensor = y, wanted: list[torch.Tensor] = wanted, delta: torch.Tensor = delta) -> None:
            torch.autograd.grad(y, wanted, delta, retain_graph=True)
            torch.cuda.synchronize()

        for tf32 in types():
            torch.backends.cudnn.allow_tf32 = tf32
            line = f"cuDNN Conv {channels} to {outputs}, k{kernel} s{stride}, {size}x{size}, batch {batch}"
            line = f"{line:54}{'TF32' if tf32 else 'fp32'}"
            for call, products in ((forward, 1), (backward, 1 if first else 2)):
                time_taken = seconds(call, 0.1)
                line += f"{time_taken * 1e3:10.3f} ms {products * flops / time_taken / 1e12:6.1f} TFLOP/s"
            say(line)
