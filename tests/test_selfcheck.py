"""What of the check of a GPU can be tried without one; the rest: `tests/cuda/test_gpu.py`, `tests/cuda/ptx/lane`."""

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.kernels.cuda.runtime import cubins
from pytagi_ddp.selfcheck import examples, gpu
from tests.cuda import compile_report
from tests.mpi import run

pytestmark = pytest.mark.slow
needs_compiler = pytest.mark.skipif(compile_report.missing() is not None, reason=str(compile_report.missing()))


@needs_compiler
def test_kernels_are_compiled_in_other_processes_and_kept(monkeypatch):
    capability, name = (8, 7), "elementwise__add"
    kernel = gpu._kernels(capability)[name]
    (variant,) = kernel.variants()
    (cubins.folder() / kernel.file(capability, variant)).unlink(missing_ok=True)
    assert not kernel.is_kept(capability, variant)
    monkeypatch.setattr(gpu, "_kernels", lambda capability: {name: kernel})
    gpu._compile_all(capability)
    assert kernel.is_kept(capability, variant)
    assert kernel.code(capability, variant)[:4] == b"\x7fELF"
    monkeypatch.setattr(gpu, "ProcessPoolExecutor", None)  # nothing is left to do
    gpu._compile_all(capability)


@needs_compiler
def test_every_activation_has_an_example_and_examples_say_the_same_every_time():
    made = {example.name: example for example in examples.examples()}
    assert {"activation ReLU", "activation Softmax", "activation EvenExp"} <= made.keys()
    assert all(f"activation {kind.__name__}" in made for kind in examples._activations())
    first, again = (made["batch norm"].on("cpu") for _ in range(2))
    assert len(first) > 20 and all(np.array_equal(first[key], again[key]) for key in first)


def test_differences_are_of_the_largest_number_and_nan_is_the_worst():
    want = {"a": np.array([[100.0, 1.0]]), "b": np.array([0.01])}
    assert gpu._difference({"a": np.array([100.0, 1.5]), "b": np.array([0.01])}, want, 0.01) == 0.005
    for wrong in (0.011, np.nan):
        with pytest.raises(gpu.Failure, match="'b' differs by"):
            gpu._difference({"a": want["a"], "b": np.array([wrong])}, want, 0.01)


def test_networks_have_the_same_parameters_every_time():
    first, again = (examples.network(lambda: [nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)]) for _ in range(2))
    assert np.array_equal(first.arena.theta, again.arena.theta)
    assert np.unique(first.arena.theta[1]).size > 20 and (first.arena.theta[1] > 0).all()


@pytest.mark.mpi
def test_what_two_ranks_run():
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    result = run.mpirun(["-c", "from pytagi_ddp.selfcheck import two_ranks; two_ranks.main('mpi')"], timeout=60)
    assert result.returncode == 0, result.stderr
    assert 0 <= float(result.stdout) < 1e-5
