"""Sizes and positions are 64-bit wherever they can exceed 32, and what cannot be counted is refused by name."""

import re
from pathlib import Path

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.kernels.cpu.runtime.extension import load, size_error
from pytagi_ddp.nn.core import init
from tests.conftest import weekly

ROOT = Path(__file__).parents[2]
KERNELS = [
    *sorted((ROOT / "pytagi_ddp" / "kernels" / "cpu").rglob("*.pyx")),
    *sorted((ROOT / "pytagi_ddp" / "distributed").rglob("*.pyx")),
]

# Products of two ints that stay below 2^31, and why: (file, expression) in the words of its source.
SMALL = {
    ("_blas.pyx", "SMALL // (mt * nt)"): "edges of a block, which a cache holds",
    ("_blas.pyx", "SMALL // (nt * kt)"): "likewise",
    ("_express.pyx", "1 + k * ARRAY"): "a place among the arguments of a call",
    ("_winograd.pyx", "kernel_edge_of(form) * kernel_edge_of(form)"): "edges of a tile are at most 10",
    ("_winograd.pyx", "edge_of(form) * edge_of(form) * size"): "likewise",
    ("_winograd.pyx", "kernel_planes_of(form) * PAD"): "likewise",
    ("_winograd.pyx", "taps_of(form) * taps_of(form)"): "likewise",
    ("_winograd_weight.pyx", "taps_of(form) * taps_of(form)"): "likewise",
    ("_winograd_weight.pyx", "tiles * sharing(form, i, j)"): "of a block of 128 tiles",
}


def products_of_ints(path: Path) -> set[tuple[str, int, str]]:
    """(file, column, line) of each product in a Cython module that C computes in 32 bits, after its types are known."""
    from Cython.Compiler import Errors, Main, Pipeline, PyrexTypes, Visitor
    from Cython.Compiler.Scanning import FileSourceDescriptor

    found: set[tuple[str, int, str]] = set()

    class Products(Visitor.TreeVisitor):
        def visit_Node(self, node):
            self.visitchildren(node)

        def visit_MulNode(self, node):
            narrow = node.type.is_int and node.type.rank <= PyrexTypes.c_int_type.rank
            if narrow and not isinstance(node.constant_result, int):
                file = Path(node.pos[0].get_filenametable_entry())
                found.add((file.name, node.pos[2], file.read_text().splitlines()[node.pos[1] - 1]))
            self.visitchildren(node)

    options = Main.CompilationOptions(Main.default_options, language_level=3, include_path=[str(ROOT)])
    context = Main.Context.from_options(options)
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    source = Main.CompilationSource(FileSourceDescriptor(str(path), str(path)), name, str(ROOT))
    stages = Pipeline.create_pyx_pipeline(context, options, Main.create_default_resultobj(source, options))
    end = next(n for n, stage in enumerate(stages) if type(stage).__name__ == "AnalyseExpressionsTransform")
    Errors.init_thread()
    error, tree = Pipeline.run_pipeline(stages[: end + 1], source)
    assert error is None, error
    Products().visit(tree)
    return found


@weekly
@pytest.mark.slow
def test_no_product_of_sizes_is_computed_in_32_bits(tmp_path):
    """Such as `groups * thread`, whose sign was wrong for 2^31 heads on 128 threads."""
    pytest.importorskip("Cython", minversion="3.1", reason="needs the Cython that builds the kernels")
    seen, unexplained = set(), []
    for path in KERNELS:
        for file, column, line in sorted(products_of_ints(path)):
            known = [key for key in SMALL if key[0] == file and key[1] in line]
            seen |= set(known)
            if not known:
                unexplained.append(f"{file}: {line.strip()} (column {column})")
    assert not unexplained, "make one factor a long, or say in SMALL why the product stays below 2^31"
    assert seen == SMALL.keys()


@pytest.mark.parametrize(
    "make",
    [
        lambda k: nn.Conv2d(1, 1, k, in_width=4, in_height=4),
        lambda k: nn.ConvTranspose2d(1, 1, 3, stride=k, in_width=4, in_height=4),
        lambda k: nn.AvgPool2d(k),
        lambda k: nn.MaxPool2d(3, k),
        lambda k: nn.Conv2d(1, 1, 3, padding=k, in_width=4, in_height=4),
    ],
)
def test_windows_that_cannot_be_counted_are_refused(make):
    """Means of wrong sign from 46341 on, and a segmentation fault at 11600."""
    make(8191)
    for k in (8192, 11600, 46341, 2**31 - 1, 2**40):
        with pytest.raises(ValueError, match=rf"(kernel_size|stride|padding) must be at most 8191, got {k}\b"):
            make(k)


def test_more_parameters_than_a_rank_can_count_are_refused_before_they_are_drawn(monkeypatch):
    with pytest.raises(ValueError, match="a layer has 2500050000 parameters, and at most 2147483647 fit on one rank"):
        nn.Sequential(nn.Linear(50_000, 50_000))
    with nn.deferred_init():
        net = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 30))
    monkeypatch.setattr(init, "MOST_PARAMETERS", 2469)
    with pytest.raises(ValueError, match="this network has 2470 parameters, and at most 2469 fit on one rank"):
        net.materialize()
    with pytest.raises(ValueError, match=r"the share of a rank has \d+ parameters, and at most 2469 fit on one rank"):
        nn.FSDPSequential(net, nn.DDPConfig(backend="serial"))


def test_a_batch_that_cannot_be_counted_is_named():
    shape = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (1 << 30, 2), (0, 0))
    hint = re.escape("mu (1073741824, 2); a batch has fewer than 1073741824 rows, pixels and columns: make it smaller")
    assert re.search(hint, str(size_error("linear.forward", mu=shape)))
    assert "fewer" not in str(size_error("linear.forward", mu=shape[1:]))


def test_more_inputs_than_an_int_counts_are_refused():
    """2^32 + 1 inputs were taken for one."""
    many = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (1, 2**32 + 1), (4 * (2**32 + 1), 4))
    linear, one = load("layers._linear"), np.zeros((1, 1), np.float32)
    with pytest.raises(ValueError, match=r"linear\.forward: .*mu \(1, 4294967297\)"):
        linear.forward(many, None, one, one, None, None, one.copy(), one.copy(), 1, False)
    with pytest.raises(ValueError, match=r"linear\.backward: .*mu \(1, 4294967297\)"):
        linear.backward(
            *(many, None, one, one, one, None, None, one.copy(), one.copy(), None, None),
            *(False, 1, False),
        )


@pytest.mark.slow
def test_heads_on_many_threads_are_all_computed():
    """heads x threads exceeds 2^31: some threads took heads before the first, and some results stayed as they were."""
    heads, threads = (1 << 24) + 5, 128
    one, out = np.ones(1, np.float32), np.zeros((2, heads), np.float32)
    same, own = (0, 0, 0, 1, 1, False), (0, 0, 1, 1, 1, False)
    multiply = load("layers._attention").multiply
    multiply(one, one, same, one, one, same, out[0], out[1], own, 1, heads, 1, 1, 1, 0, threads)
    assert (out[0] == 1).all() and (out[1] == 3).all()
