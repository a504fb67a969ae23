"""python -m pytagi_ddp.doctor: finishes, names everything, and says whether a run would work."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pytagi_ddp import cuda, doctor
from pytagi_ddp.blas import Blas
from pytagi_ddp.kernels.cpu.runtime import shared_cache
from tests.mpi.run import mpirun_command

pytestmark = pytest.mark.slow  # starts processes of its own
ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_report_of_this_machine():
    result = subprocess.run([sys.executable, "-m", "pytagi_ddp.doctor"], capture_output=True, text=True, timeout=90)
    assert result.returncode == 0, result.stdout
    assert result.stderr == ""
    topics = [line.partition("  ")[0].strip() for line in result.stdout.partition("\n\n")[0].splitlines()]
    expected = ["Python", "numpy", "scipy", "numba", "Products", "CPU kernels", "Cores", "Threads", "mpi4py"]
    expected += ["GPUs", "CuPy, NCCL"]
    assert [topic for topic in topics if topic in expected] == expected
    assert "cannot tell" not in result.stdout


def test_what_a_run_needs_decides_the_exit_code():
    lines = []
    findings = [doctor.Finding("MPI", "not installed", "pip install it"), doctor.Finding("Python", "3.10")]
    assert doctor.report(findings, lines.append) == 0
    assert lines[:3] == ["MPI     not installed", "Python  3.10", "\nMPI: not installed\n    pip install it"]
    assert doctor.report([*findings, doctor.Finding("kernels", "gone", "build", needed=True)], lines.append) == 1
    assert lines[-1] == "\nA CPU run does not work here."


def test_a_numba_that_is_too_new_for_threads(monkeypatch):
    def advice() -> str:
        return next(finding.advice for finding in doctor._threads() if finding.topic == "Threads")

    assert advice() == ""
    monkeypatch.setattr(shared_cache, "LAST_KNOWN_NUMBA", (0, 50))
    assert advice() == "Numba's loops use one; for more: pip install 'numba<0.51'"


def test_a_check_that_fails_becomes_a_finding(monkeypatch):
    def broken():
        raise OSError("no such device")
        yield

    monkeypatch.setattr(doctor, "_gpus", broken)
    assert doctor.examine()[-1].text == "cannot tell: OSError('no such device')"


def test_a_missing_mpi4py_is_said_with_the_remedy(monkeypatch):
    def missing(name):
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", missing)
    (finding,) = doctor._mpi()
    assert (finding.text, finding.needed) == ("not installed", False)
    assert "pytagi-ddp[mpi]" in finding.advice


MODULES = ["pytagi_ddp.doctor", "pytagi_ddp.launch", "pytagi_ddp.as_pytagi", "examples.model_parallel"]


@pytest.mark.parametrize("module", MODULES)
def test_programs_start_without_docstrings(module):
    done = subprocess.run([sys.executable, "-OO", "-m", module, "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr


@pytest.mark.skipif(cuda.is_available(), reason="this machine has a GPU")
def test_where_there_is_no_gpu_the_reason_is_said():
    result = subprocess.run([sys.executable, "-m", "pytagi_ddp.doctor", "--gpu"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, f"no GPU to check: {cuda.why_not()}\n"), result.stderr


def test_a_table_that_would_not_be_written_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        doctor.main(["--json", str(tmp_path / "table.json")])
    assert "--json is for the table of --gpu" in capsys.readouterr().err
    for file in (tmp_path, tmp_path / "none" / "table.json"):
        with pytest.raises(SystemExit):
            doctor.main(["--gpu", "--json", str(file)])
        assert "--json needs the name of a file in a folder that is there" in capsys.readouterr().err


@pytest.mark.mpi
def test_the_trial_says_its_sum_once(monkeypatch):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    said, ask = [], doctor._ask
    monkeypatch.setattr(doctor, "_ask", lambda command: said.append(ask(command)) or said[0])
    assert doctor._trial(mpirun_command()[0]).text == "2 ranks start, add and end"
    assert said == [("2\n", "")]  # lines of two ranks would sometimes arrive as "22"


LINE = "-" * 74
# What mpirun of Open MPI 4.1.4 prints, without its last paragraphs.
AS_ROOT = f"""{LINE}
mpirun has detected an attempt to run as root.

Running as root is *strongly* discouraged as any mistake (e.g., in
defining TMPDIR) or bug can result in catastrophic damage to the OS
file system, leaving your system in an unusable state.
{LINE}
"""
SLOTS = f"""{LINE}
There are not enough slots available in the system to satisfy the 2
slots that were requested by the application:

  python

Either request fewer slots for your application, or make more slots
available for use.
{LINE}
"""
OF_A_RANK = f"""[rank 0/2] Traceback (most recent call last):
  File "train.py", line 1, in <module>
pytagi_ddp.distributed.engine.errors.LaunchError: /dev/shm has 16.8 MB
{LINE}
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{LINE}
"""


@pytest.mark.parametrize(
    ("text", "reason", "advice"),
    [
        (AS_ROOT, "mpirun has detected an attempt to run as root.", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"),
        (
            SLOTS,
            "There are not enough slots available in the system to satisfy the 2 slots that were requested by the "
            "application:",
            "--oversubscribe",
        ),
        (OF_A_RANK, "pytagi_ddp.distributed.engine.errors.LaunchError: /dev/shm has 16.8 MB", "/dev/shm has 16.8 MB"),
        ("", "exit code 1", "exit code 1"),
    ],
)
def test_why_ranks_do_not_start(text, reason, advice, tmp_path):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}END\nexit 1\n")
    mpirun.chmod(0o755)
    finding = doctor._trial(str(mpirun))
    assert finding.text == f"2 ranks do not work together: {reason}"
    assert advice in finding.advice
    lines = []
    assert doctor.report([finding], lines.append) == 1
    assert lines[-1] == "\nA CPU run of one process works here; ranks do not start."


def test_the_error_within_the_text_of_another_one_is_the_reason():
    text = f"ImportError: \n{LINE}\nFailed to import CuPy.\n\nOriginal error:\n  OSError: libcudart.so.12\n{LINE}\n"
    assert doctor.reason(text) == "OSError: libcudart.so.12"


@pytest.mark.skipif(doctor.shared_memory.free_bytes() is None, reason="the system has no /dev/shm")
def test_only_what_needs_shared_memory_is_said_to_need_it(monkeypatch):
    monkeypatch.setattr(doctor, "_mpi_library", lambda: ("MPICH Version:      5.0.2", ""))
    assert "MB free; MPICH needs" in next(doctor._shared_memory()).text
    for library in ("Open MPI v4.1.4, package: Debian OpenMPI", ""):
        monkeypatch.setattr(doctor, "_mpi_library", lambda library=library: (library, ""))
        finding = next(doctor._shared_memory())
        assert finding.text.endswith(" MB free")
        assert finding.advice == ""


@pytest.mark.skipif(doctor.shared_memory.free_bytes() is None, reason="the system has no /dev/shm")
def test_names_of_files_to_remove_are_quoted(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.shared_memory, "SHM", tmp_path)
    monkeypatch.setattr(doctor, "_mpi_library", lambda: ("", ""))
    file = tmp_path / "mpich_shm_x;echo $(id) 'y'"
    file.write_bytes(b"x")
    assert shlex.split(list(doctor._shared_memory())[-1].advice) == ["rm", str(file)]


def test_pinned_kernels_are_said_with_the_remedy(monkeypatch):
    pinned = Blas("openblas 1", "Haswell", "Haswell", "SkylakeX")
    monkeypatch.setattr(doctor, "blas_in_use", lambda: pinned)
    (finding,) = doctor._products()
    assert (
        finding.text
        == "openblas 1 with kernels for Haswell, pinned by OPENBLAS_CORETYPE=Haswell (without it: SkylakeX)"
    )
    assert "unset OPENBLAS_CORETYPE" in finding.advice
    assert not finding.needed
