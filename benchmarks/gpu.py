"""Everything that a GPU can show, in one command and ten minutes: `python -m benchmarks.gpu`.

| section | what it shows |
|---|---|
| machine | the GPU, its driver, versions |
| check | what `python -m pytagi_ddp.doctor --gpu` tries: every kernel against the CPU, steps in every way, TF32, NCCL |
| peak | the matrix peak of the same card by cuBLAS |
| kernels | the launches of a ResNet18 step, kernel by kernel |
| steps | whole training steps: walked, replayed, as CUDA graphs |
| layers | single layers against the matrix peak |
| torch | PyTorch on the same card, if it is installed: cuDNN, an SGD step, a TAGI step |
| tests | all tests that need a GPU |
| cifar | a few epochs of CIFAR-10, if the data is there (only if asked for) |

Each section is a process of its own with a limit of time: what fails, crashes or takes too long is said, and the next
one has its turn. One report is written, as JSON and as Markdown, in `benchmarks/results/` (again after each section).

Where there is no GPU: the launches of a step, counted without one.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import which

from benchmarks.report import table
from pytagi_ddp import cuda
from pytagi_ddp.data.cifar10 import find_cifar10
from pytagi_ddp.files import atomic_write

MINUTES = 10
BUDGETS = {  # seconds, in order
    "machine": 20,
    "check": 90,
    "peak": 20,
    "kernels": 50,
    "steps": 90,
    "layers": 50,
    "torch": 50,
    "tests": 120,
}
EXTRA = {"cifar": 1800}  # only if asked for
RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]
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
    "nvidia-nvjitlink-cu12",
    "nvidia-nccl-cu13",
    "nvidia-nccl-cu12",
    "mpi4py",
    "mpich",
    "torch",
)
LINES, LINES_OF_FAILURE = 12, 80  # of a program's output in the report
WORKLOAD = "resnet18-b128"  # whose kernels are timed

Say = Callable[[str], None]


# -- sections: each says lines, and returns what can be written as JSON ---------------------------------------------


def report_machine(say: Say) -> dict:
    from pytagi_ddp.kernels.cuda.runtime.array import cupy, nccl

    runtime, found = cupy.cuda.runtime, {}
    for index in range(cuda.get_device_count()):
        found[f"cuda:{index}"] = cuda.get_device_properties(index)
    if which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True)
        found["driver, clock limit, power limit"] = (done.stdout or done.stderr).strip()
    found["CUDA"] = f"driver for {runtime.driverGetVersion()}, runtime {runtime.runtimeGetVersion()}"
    found["NCCL"] = str(nccl().get_version()) if cuda.is_nccl_available() else "not found"
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    for name, text in found.items():
        say(f"{name}: {text}")
    return found


def report_check(say: Say) -> dict:
    from pytagi_ddp.selfcheck import gpu

    code, rows = gpu.report("cuda", say)
    if code:
        raise RuntimeError(f"{sum(row.failed for row in rows)} of {len(rows)} checks failed")
    return {"rows": [row._asdict() for row in rows]}


def report_peaks(say: Say) -> dict:
    from benchmarks import gpu_timing

    peaks = {_kind(tf32): peak for tf32, peak in gpu_timing.peaks().items()}
    for kind, peak in peaks.items():
        say(f"matrix peak of cuBLAS, {kind}: {peak / 1e12:.1f} TFLOP/s")
    return peaks


def report_kernels(say: Say) -> dict:
    from benchmarks import gpu_timing

    return {_kind(tf32): gpu_timing.report_kernels(tf32, say, WORKLOAD) for tf32 in gpu_timing.types()}


def report_tests(say: Say) -> None:
    if code := run(say, "tests", "pytest", "-m", "gpu", "-q", "--no-header"):
        raise RuntimeError(f"tests failed, exit code {code}")


def report_cifar(say: Say) -> None:
    if find_cifar10() is None:
        say("CIFAR-10: not found (PYTAGI_DATA or ./data/cifar); no training")
        return
    options = ["--device", "cuda", "--data", "cifar10", "--epochs", "3", "--progress", "lines"]
    run(say, "CIFAR-10, ResNet18", "examples.ddp_cifar_resnet", *options)


def _from(module: str, name: str) -> Callable[[Say], object]:
    """A report of another module, which is loaded when the section begins."""
    return lambda say: getattr(import_module(f"benchmarks.{module}"), name)(say)


REPORTS: dict[str, Callable[[Say], object]] = {
    "machine": report_machine,
    "check": report_check,
    "peak": report_peaks,
    "kernels": report_kernels,
    "steps": _from("gpu_timing", "report_steps"),
    "layers": _from("gpu_timing", "report_layers"),
    "torch": _from("gpu_torch", "report_torch"),
    "tests": report_tests,
    "cifar": report_cifar,
}


def _kind(tf32: bool) -> str:
    return "TF32" if tf32 else "fp32"


def run(say: Say, what: str, *module: str, **environment: str) -> int:
    """Runs a module of Python, and says its last lines; returns its exit code."""
    command = [sys.executable, "-m", *module]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    say(f"{what}: exit code {done.returncode}")
    for line in (done.stdout + done.stderr).splitlines()[-(LINES_OF_FAILURE if done.returncode else LINES) :]:
        say(f"  {line}")
    return done.returncode


# -- one section, in its own process, and all of them ---------------------------------------------------------------


def run_section(report: Callable[[Say], object], file: Path) -> int:
    """Runs a section here; `file` has what it found so far at any time. Returns the exit code."""
    found: dict = {"lines": [], "data": None}

    def say(line: str) -> None:
        print(line, flush=True)
        found["lines"].append(line)
        atomic_write(file, json.dumps(found).encode())

    try:
        found["data"] = report(say)
    except Exception:
        say(traceback.format_exc())
        return 1
    atomic_write(file, json.dumps(found).encode())
    return 0


def attempt(command: Sequence[str], file: Path, limit: float) -> dict:
    """Runs the process of a section: its result, its seconds, and what it wrote into `file`."""
    start = time.monotonic()
    with subprocess.Popen([*command], cwd=ROOT, start_new_session=True) as process:
        try:
            code = process.wait(limit)
            result = "ok" if code == 0 else f"failed, exit code {code}"
        except subprocess.TimeoutExpired:
            result = f"out of time after {limit:.0f} s"
        except BaseException:
            _end(process)
            raise
        _end(process)
    found = json.loads(file.read_text()) if file.exists() else {"lines": [], "data": None}
    return {"result": result, "seconds": time.monotonic() - start} | found


def _end(process: subprocess.Popen) -> None:
    """Ends a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_all(
    sections: Mapping[str, float], command_of: Callable[[str, Path], Sequence[str]], output: Path, seconds: float
) -> dict:
    """Runs sections one after the other, and writes the report after each.

    Args:
        sections: name and limit of each, in seconds. command_of: the process of a section, which writes into a file.
        output: the report, without its suffix. seconds: for all together.
    """
    end = time.monotonic() + seconds
    whole: dict = {"begun": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC", "sections": {}}
    with tempfile.TemporaryDirectory() as place:
        for name, budget in sections.items():
            limit, file = min(budget, end - time.monotonic()), Path(place, name)
            print(f"\n== {name}", flush=True)
            if limit < 1:
                found = {"result": "left out: no time was left", "seconds": 0.0, "lines": [], "data": None}
            else:
                found = attempt(command_of(name, file), file, limit)
            print(f"== {name}: {found['result']}, {found['seconds']:.0f} s", flush=True)
            whole["sections"][name] = found
            atomic_write(output.with_suffix(".json"), json.dumps(whole, indent=1).encode())
            atomic_write(output.with_suffix(".md"), markdown(whole).encode())
    return whole


# -- the report -----------------------------------------------------------------------------------------------------


def markdown(whole: dict) -> str:
    """The report as text: results of the sections, times of kernels, and the output of each section."""
    sections = whole["sections"]
    parts = [f"# A GPU, {whole['begun']}"]
    rows = [[name, found["result"], f"{found['seconds']:.0f}"] for name, found in sections.items()]
    parts.append(table(["section", "result", "seconds"], rows))
    for kind, measured in ((sections.get("kernels") or {}).get("data") or {}).items():
        parts.append(f"## {WORKLOAD} by kernel, {kind}\n\n{kernel_table(measured)}")
    for name, found in sections.items():
        lines = "\n".join(found["lines"])
        parts.append(f"## {name}: {found['result']}\n\n```text\n{lines}\n```")
    return "\n\n".join(parts) + "\n"


def kernel_table(measured: dict) -> str:
    """Launches and times of each kernel."""
    rows = sorted(measured.items(), key=lambda item: -item[1]["seconds"])
    rows.append(("all", {name: sum(row[name] for row in measured.values()) for name in ("launches", "seconds")}))
    cells = [[name, str(row["launches"]), f"{row['seconds'] * 1e3:.3f}"] for name, row in rows]
    return table(["kernel", "launches", "ms"], cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=REPORTS, help="may be repeated; default: all but cifar")
    parser.add_argument(
        "--output", type=Path, help="the report (benchmarks/results/gpu-<date and time>), .json and .md"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for all sections together ({MINUTES})")
    parser.add_argument("--section", choices=REPORTS, help=argparse.SUPPRESS)  # what each process is started with
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.section:
        sys.exit(run_section(REPORTS[args.section], args.file))
    if (reason := cuda.why_not()) is not None:
        print(f"no GPU: no times ({reason})", flush=True)
        run(print, "launches, counted without a GPU", "benchmarks.gpu_launches")
        return
    output = args.output or RESULTS / f"gpu-{datetime.now():%Y-%m-%d-%H%M}"
    output.parent.mkdir(parents=True, exist_ok=True)
    sections = {name: (BUDGETS | EXTRA)[name] for name in args.only or BUDGETS}
    command = [sys.executable, "-m", "benchmarks.gpu"]
    whole = run_all(
        sections,
        lambda name, file: [*command, "--section", name, "--file", str(file)],
        output,
        max(60 * args.minutes, sum(EXTRA.get(name, 0) for name in sections)),
    )
    print(f"\nreport: {output.with_suffix('.md')}, {output.with_suffix('.json')}")
    sys.exit(any(found["result"] != "ok" for found in whole["sections"].values()))


if __name__ == "__main__":
    main()
