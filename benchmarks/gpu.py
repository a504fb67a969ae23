"""Everything that a GPU can show, in one command: `python -m benchmarks.gpu`.

Versions; all tests that need a GPU (kernels and networks against the CPU and against float64, recorded cases, NCCL,
two ranks on one GPU); times against the matrix peak of the same card and against PyTorch, if that is installed; a few
epochs of CIFAR-10, if the data is there. The report is printed, and kept in `benchmarks/results/`.

Where there is no GPU: the launches of a step, counted without one.
"""

import argparse
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import which

from pytagi_ddp import cuda
from pytagi_ddp.data.cifar10 import find_cifar10

SECTIONS = ("versions", "tests", "peak", "layers", "steps", "kernels", "torch", "cifar")
RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "pytagi-ddp",
    "numpy",
    "numba",
    "numba-cuda",
    "cuda-bindings",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "nvidia-nvvm",
    "nvidia-nvjitlink",
    "nvidia-nccl-cu13",
    "mpi4py",
    "mpich",
    "torch",
)
LINES, LINES_OF_FAILURE = 12, 80  # of a program's output in the report


def report_versions(say: Callable[[str], None]) -> None:
    from pytagi_ddp.kernels.cuda.array import cupy, nccl

    runtime = cupy.cuda.runtime
    for index in range(cuda.get_device_count()):
        say(f"cuda:{index}: {cuda.get_device_properties(index)}, {cuda.get_device_uuid(index)}")
    if which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True)
        say(f"driver, clock limit, power limit: {(done.stdout or done.stderr).strip()}")
    say(f"CUDA: driver for {runtime.driverGetVersion()}, runtime {runtime.runtimeGetVersion()}")
    say(f"NCCL: {nccl().get_version() if cuda.is_nccl_available() else 'not found'}")
    for package in PACKAGES:
        try:
            say(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue


def run(say: Callable[[str], None], what: str, *module: str, **environment: str) -> None:
    """Runs a module of Python, and puts its last lines into the report."""
    command = [sys.executable, "-m", *module]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    say(f"{what}: exit code {done.returncode}")
    for line in (done.stdout + done.stderr).splitlines()[-(LINES_OF_FAILURE if done.returncode else LINES) :]:
        say(f"  {line}")


def report_peaks(peaks: dict[bool, float], say: Callable[[str], None]) -> None:
    for tf32, peak in peaks.items():
        say(f"matrix peak of cuBLAS, {'TF32' if tf32 else 'fp32'}: {peak / 1e12:.1f} TFLOP/s")


def report_cifar(epochs: int, say: Callable[[str], None]) -> None:
    if find_cifar10() is None:
        say("CIFAR-10: not found (PYTAGI_DATA or ./data/cifar); no training")
        return
    options = ["--device", "cuda", "--data", "cifar10", "--epochs", str(epochs), "--progress", "lines"]
    run(say, "CIFAR-10, ResNet18", "examples.ddp_cifar_resnet", *options)


def sections(epochs: int, say: Callable[[str], None]) -> dict[str, Callable[[], object]]:
    """What each of `SECTIONS` does."""
    from benchmarks import gpu_timing, gpu_torch

    peaks = gpu_timing.peaks
    return {
        "versions": lambda: report_versions(say),
        "tests": lambda: run(say, "tests", "pytest", "-m", "gpu", "-q", "--no-header"),
        "peak": lambda: report_peaks(peaks(), say),
        "layers": lambda: gpu_timing.report_layers(peaks(), say),
        "steps": lambda: gpu_timing.report_steps(peaks(), say),
        "kernels": lambda: [gpu_timing.report_kernels(tf32, say) for tf32 in gpu_timing.types()],
        "torch": lambda: gpu_torch.report_torch(say),
        "cifar": lambda: report_cifar(epochs, say),
    }


def attempt(section: str, report: Callable[[], object], say: Callable[[str], None]) -> None:
    """Runs a section; its failure goes into the report, and the next one has its turn."""
    try:
        report()
    except Exception:
        say(f"{section} failed:\n{traceback.format_exc()}")
    finally:
        cuda.allow_tf32, cuda.replay_launches, cuda.use_graphs = False, True, False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=SECTIONS, help="may be repeated; default: all")
    parser.add_argument("--epochs", type=int, default=3, help="of CIFAR-10 (3)")
    parser.add_argument("--output", type=Path, help="file for the report (benchmarks/results/gpu-<date and time>.txt)")
    args = parser.parse_args()
    if (reason := cuda.why_not()) is not None:
        print(f"no GPU: no times ({reason})", flush=True)
        run(print, "launches, counted without a GPU", "benchmarks.gpu_launches", NUMBA_ENABLE_CUDASIM="1")
        return
    output = args.output or RESULTS / f"gpu-{datetime.now():%Y-%m-%d-%H%M}.txt"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("")
    chosen = args.only or SECTIONS

    def say(line: str) -> None:
        print(line, flush=True)
        with output.open("a") as file:
            file.write(line + "\n")

    for section, report in sections(args.epochs, say).items():
        if section in chosen:
            attempt(section, report, say)
    print(f"report: {output}")


if __name__ == "__main__":
    main()
