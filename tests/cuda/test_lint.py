"""Traps of CUDA kernels that neither the simulator nor the compiler reports."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = sorted([*(ROOT / "kernels").rglob("*.py"), *(ROOT / "pytagi_ddp").rglob("*.py")])
KERNELS = sorted([*(ROOT / "kernels" / "cuda").rglob("*.py"), *(ROOT / "kernels" / "formulas").glob("*.py")])
# Of each package, the only file that imports it.
HOME = {"numba.cuda": "kernels/cuda/runtime/compile.py", "cupy": "kernels/cuda/runtime/array.py"}
DECORATORS = {"kernel", "device", "formula"}


def name_of(node: ast.AST) -> str:
    """`a.b.c` of an expression."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imported(tree: ast.AST) -> list[str]:
    """Full names of what a module imports, by statements or by import_module."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and name_of(node.func).endswith("import_module") and node.args:
            names += [node.args[0].value] if isinstance(node.args[0], ast.Constant) else []
    return names


def float_literals(tree: ast.AST) -> list[int]:
    """Lines in kernels, device functions and formulas with a number that is a float64, or one of math or NumPy."""
    found = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        decorators = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
        if not any(name_of(d).rsplit(".", 1)[-1] in DECORATORS for d in decorators):
            continue
        wrapped = {
            id(argument)
            for call in ast.walk(function)
            if isinstance(call, ast.Call) and name_of(call.func) in ("f", "np.float32", "float32")
            for argument in call.args
        }
        for node in ast.walk(function):
            literal = isinstance(node, ast.Constant) and isinstance(node.value, float)
            constant = name_of(node) in {f"{m}.{c}" for m in ("math", "np") for c in ("pi", "e", "inf", "nan")}
            if (literal or constant) and id(node) not in wrapped:
                found.append(node.lineno)
    return found


def bounds(tree: ast.AST) -> list[int]:
    """Lines that call min or max."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if name_of(call.func) in ("min", "max")]


@cache
def parse(path: Path) -> ast.AST:
    return ast.parse(path.read_text())


def here(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("package", HOME)
def test_gpu_packages_have_one_door(package):
    users = {
        here(path)
        for path in LIBRARY
        if any(name == package or name.startswith(f"{package}.") for name in imported(parse(path)))
    }
    assert users - {f"pytagi_ddp/{HOME[package]}"} == {HOME[package]}  # pytagi_ddp/kernels is a link


@pytest.mark.parametrize("path", KERNELS, ids=here)
def test_no_float64_literals(path):
    assert float_literals(parse(path)) == []


@pytest.mark.parametrize("path", [path for path in KERNELS if path.parent.name == "formulas"], ids=here)
def test_formulas_carry_nan(path):
    """`min` and `max` drop it on a GPU; `formulas.bounds` has what does not."""
    assert bounds(parse(path)) == []


def test_the_lints_see_what_they_look_for():
    source = """
from numba import cuda
import cupy.cuda
cupy = import_module("cupy.linalg")
@kernel(floats, threads=32)
def one(x):
    x[0] = 0.5 * np.float32(0.25) + math.pi
    x[1] = max(x[0], 1)
def host(x):
    return 0.5
"""
    tree = ast.parse(source)
    assert imported(tree) == ["numba.cuda", "cupy.cuda", "cupy.linalg"]
    assert float_literals(tree) == [7, 7]
    assert bounds(tree) == [8]
