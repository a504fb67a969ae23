"""Everything that a GPU can show, in one command: `python -m benchmarks.gpu`.

Versions; all tests that need a GPU (kernels and networks against the CPU and against float64, recorded cases, NCCL,
two ranks on one GPU); times against the matrix peak of the same card and against PyTorch, if that is installed; a few
epochs of CIFAR-10, if the data is there. Says so and ends where there is no GPU.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pytagi_ddp import cuda
from pytagi_ddp.data.cifar10 import find_cifar10

SECTIONS = ("versions", "tests", "layers", "steps", "kernels", "torch", "cifar")
PACKAGES = (
    "pytagi-ddp",
    "numba",
    "numba-cuda",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "nvidia-nvvm",
    "nvidia-nccl-cu13",
    "torch",
)


def report_versions(say: Callable[[str], None]) -> None:
    from pytagi_ddp.kernels.cuda.array import cupy, nccl

    runtime = cupy.cuda.runtime
    for index in range(cuda.get_device_count()):
        say(f"cuda:{index}: {cuda.get_device_properties(index)}")
    say(f"CUDA: driver for {runtime.driverGetVersion()}, runtime {runtime.runtimeGetVersion()}")
    say(f"NCCL: {nccl().get_version() if nccl().available else 'not found'}")
    for package in PACKAGES:
        try:
            say(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue


def run(say: Callable[[str], None], what: str, *module: str) -> None:
    """Runs a module of Python, and puts its last lines into the report."""
    done = subprocess.run([sys.executable, "-m", *module], capture_output=True, text=True)
    say(f"{what}: exit code {done.returncode}")
    for line in (done.stdout + done.stderr).splitlines()[-12:]:
        say(f"  {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=SECTIONS, help="may be repeated; default: all")
    parser.add_argument("--epochs", type=int, default=3, help="of CIFAR-10 (3)")
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    args = parser.parse_args()
    if (reason := cuda.why_not()) is not None:
        print(f"no GPU: nothing to measure ({reason})")
        return
    chosen, lines = args.only or SECTIONS, []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if args.output:
            args.output.write_text("\n".join(lines) + "\n")

    if "versions" in chosen:
        report_versions(say)
    if "tests" in chosen:
        run(say, "tests", "pytest", "-m", "gpu", "tests/cuda", "-q", "--no-header")
    if {"layers", "steps", "torch"} & set(chosen):
        from benchmarks import gpu_timing

        peak = gpu_timing.peaks()
        say("matrix peak: " + ", ".join(f"{'TF32' if t else 'fp32'} {p / 1e12:.1f} TFLOP/s" for t, p in peak.items()))
        if "layers" in chosen:
            gpu_timing.report_layers(peak, say)
        if "steps" in chosen:
            gpu_timing.report_steps(peak, say)
    if "kernels" in chosen:
        from benchmarks import gpu_timing

        gpu_timing.report_kernels(say)
    if "torch" in chosen:
        from benchmarks.gpu_torch import report_torch

        report_torch(say)
    if "cifar" in chosen:
        if find_cifar10() is None:
            say("CIFAR-10: not found (PYTAGI_DATA or ./data/cifar); no training")
        else:
            options = ["--device", "cuda", "--data", "cifar10", "--epochs", str(args.epochs), "--progress", "lines"]
            run(say, "CIFAR-10, ResNet18", "examples.ddp_cifar_resnet", *options)


if __name__ == "__main__":
    main()
