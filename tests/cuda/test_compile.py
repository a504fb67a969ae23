"""Compiles every CUDA kernel on machines without a GPU, and checks what NVVM and the assembler make of it.

On a GPU the very same code runs: launches load the cubins that are made here. `python -m tests.cuda.compile_report`
prints the numbers. It takes a minute and is tested once a week; the PTX of each kernel is compiled and run every time
(tests/cuda/ptx).
"""

import gc
import re

import pytest

from tests.conftest import ALL_TESTS
from tests.cuda.compile_report import CAPABILITIES, compile_all, missing, registry

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
REGISTERS = 65_536  # of a multiprocessor
SHARED = 48 * 1024  # bytes of a block
FLOAT64_ALLOWED: dict[str, int] = {}  # kernel: instructions


@pytest.fixture(scope="module")
def rows(processes):
    if not ALL_TESTS:
        pytest.skip("assembled once a week, with PYTAGI_DDP_ALL_TESTS=1")
    return compile_all(processes=processes)


@pytest.fixture(scope="module")
def products(rows):
    return [row for row in rows if row.instructions]


def worst(rows, measure, limit):
    """The rows that are over the limit, to be shown."""
    return [(row.kernel, row.variant, row.capability, measure(row)) for row in rows if measure(row) > limit(row)]


def test_every_kernel_is_compiled_for_every_architecture(rows):
    found = {(row.kernel, row.capability) for row in rows}
    expected = {
        (name, capability)
        for name, kernel in registry().items()
        for capability in CAPABILITIES
        if capability >= kernel.min_capability
    }
    assert found == expected
    assert len(registry()) > 40


def test_no_spills_and_no_stack(rows):
    assert not worst(rows, lambda row: row.spilled + row.stack, lambda row: 0)


def test_launch_bounds_fit_the_register_file(rows):
    blocks = {name: kernel.min_blocks for name, kernel in registry().items()}
    used = lambda row: blocks[row.kernel] * row.threads * -(-row.registers // 8) * 8  # noqa: E731
    assert not worst(rows, used, lambda row: REGISTERS)


def test_shared_memory_fits_every_gpu(rows):
    assert not worst(rows, lambda row: row.shared, lambda row: SHARED)


def test_no_float64(rows):
    assert not worst(rows, lambda row: row.float64, lambda row: FLOAT64_ALLOWED.get(row.kernel, 0))


@pytest.mark.parametrize(
    ("tile", "share"),
    [("fp32_128x64", 0.86), ("fp32_32x32", 0.70), ("fp32_8x64", 0.70), ("fp32_64x8", 0.70), ("tf32_128x64", 0.15)],
)
def test_inner_loops_multiply(products, tile, share):
    chosen = [row for row in products if tile in row.kernel]
    assert len(chosen) >= 3 * len(CAPABILITIES)
    lost = lambda row: 1 - row.instructions.multiplications / row.instructions.total  # noqa: E731
    assert not worst(chosen, lost, lambda row: 1 - share)


def test_shared_memory_is_read_four_numbers_at_a_time(products):
    for row in products:
        if "fp32" in row.kernel:
            assert set(row.instructions.shared_loads) == {128}, row


def test_global_memory_is_read_four_numbers_at_a_time(products):
    for row in products:
        assert row.instructions.global_loads[128] >= 2, row


def test_arguments_lie_as_a_launch_passes_them():
    kernel = registry()["convolution_pack"]
    parameters = re.findall(r"\.param \.(\w+) ", kernel.compile((9, 0), (False,)).ptx.split("{")[0])
    assert parameters == ["u64", "u64", "u64", "u32", "u32", "u32", "u32"]  # an array that is None is a null pointer


def test_garbage_is_not_collected_while_a_kernel_is_compiled(monkeypatch):
    from pytagi_ddp.kernels.cuda.runtime import compile as compiling

    seen = []

    def fails(*arguments, **options):
        seen.append(gc.isenabled())
        raise ValueError("no kernel")

    monkeypatch.setattr(compiling.cuda, "compile_ptx", fails)
    with pytest.raises(ValueError, match="no kernel"):
        compiling.Kernel._ptx.__wrapped__(registry()["pooling__max_forward"], ())
    assert seen == [False] and gc.isenabled()
