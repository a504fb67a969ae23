"""python -m pytagi_ddp.doctor: finishes, names everything, and says whether a run would work."""

import subprocess
import sys

import pytest

from pytagi_ddp import cuda, doctor
from pytagi_ddp.blas import Blas
from tests.mpi.run import mpirun_command

pytestmark = pytest.mark.slow  # starts processes of its own


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
