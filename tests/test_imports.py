"""Modules of the package import each other in one direction: no circles, and each group only the groups above it."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[1]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "pytagi_ddp" else ("pytagi_ddp", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_statements(path: Path) -> str:
    """The source of a module; of a Cython module, its imports alone, as Python writes them."""
    if path.suffix == ".py":
        return path.read_text()
    found = re.finditer(r"^ *from [\w.]+ c?import (\([^)]*\)|.*)", path.read_text(), re.MULTILINE)
    return "\n".join(dedent(statement[0]).replace(" cimport ", " import ") for statement in found)


# The folder `kernels` is the package `pytagi_ddp.kernels`, through a link. A Cython module is two files, or one.
FILES = [
    path
    for ending in ("py", "pyx", "pxd")
    for folder in ("pytagi_ddp", "kernels")
    for path in sorted((ROOT / folder).rglob(f"*.{ending}"))
    if not path.is_relative_to(ROOT / "pytagi_ddp" / "kernels")
]
SOURCES: dict[str, str] = {}
for path in FILES:
    SOURCES[module_name(path)] = SOURCES.get(module_name(path), "") + "\n" + import_statements(path)


parse = cache(ast.parse)


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The statements under `node` that run when the module is imported."""
    for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    for child in node.orelse if for_types else ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from at_import(child)


def named(name: str, nodes: Iterable[ast.AST]) -> set[str]:
    """The modules of the package that imports among `nodes` name; also constants of `import_module` and `load`."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: the package has no relative imports"
            # `from package import name` may name a module of the package, or what stands in it.
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & SOURCES.keys() or {str(node.module)}
            found |= {str(node.module)} if names - SOURCES.keys() else set()
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "load":  # of kernels.cpu.runtime.extension
            found |= {f"pytagi_ddp.kernels.cpu.{a.value}" for a in node.args if isinstance(a, ast.Constant)}
    return (found & SOURCES.keys()) - {name}


def run_before(name: str, source: str) -> set[str]:
    """Modules that run before `name` does: those that it imports at once, and the packages that these are in.

    Not the packages that `name` itself is in: they have begun before.
    """
    modules = named(name, at_import(parse(source)))
    with_packages = {".".join(module.split(".")[:k]) for module in modules for k in range(1, module.count(".") + 2)}
    return {module for module in with_packages & SOURCES.keys() if not f"{name}.".startswith(f"{module}.")}


def arrows(name: str, source: str) -> set[str]:
    """Modules that `name` imports anywhere: at once, in a function, or for type annotations alone."""
    return named(name, ast.walk(parse(source)))


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a ring, if there are any."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


# The groups of modules, the lowest first: a file imports files of its own group and of earlier groups of this table.
# Names of modules are without `pytagi_ddp.`; `name.*` is a package with all of its modules.
GROUPS = {
    "util": """
        _version arrays bars blas files interrupts listing moved process_tree quota text validate warn weights
        kernels.checksummed nn.core.attributes nn.core.table nn.core.unpickled
    """,
    "kernels/formulas": "kernels.formulas.*",
    "kernels/interface": "kernels.protocol kernels.tensors",
    "kernels/cpu/products": "kernels.cpu.products.*",
    "kernels/cpu/runtime": "kernels.cpu.runtime.*",
    "kernels/cpu/layers": "kernels.cpu.layers.* kernels.cpu",
    "kernels/cuda/runtime": "cuda kernels.cuda.runtime.*",
    "kernels/cuda/products": "kernels.cuda.products.*",
    "kernels/cuda/layers": "kernels.cuda.layers.* kernels.cuda",
    "kernels": "kernels kernels.one_thread",
    "nn/core": "nn.core.* nn.base_layer nn.hierarchical_softmax",
    "nn/layers": "nn.layers.*",
    "nn/run": "nn.run.*",
    "likelihoods": "likelihoods.*",
    "nn/files": "nn.files.*",
    "nn/tools": "nn.tools.*",
    "nn/sequential": "nn.sequential",
    "nn/convert": "nn.convert.*",
    "distributed/comm": """
        distributed.backends distributed.communicator distributed.container distributed.device_mesh
        distributed.engine.* distributed.metrics distributed.rank_zero distributed.run_threads
    """,
    "distributed/train": """
        distributed.bounded_merge distributed.buckets distributed.compare distributed.compression distributed.config
        distributed.ddp distributed.exchange distributed.federated distributed.functional distributed.merge
        distributed.sharded distributed.synchronization distributed.trained_on_ranks distributed.wrapper
    """,
    "distributed/fsdp": "distributed.fsdp distributed.gathering distributed.sharded_arena",
    "distributed/pipeline": "distributed.pipeline.*",
    "distributed/threads": "distributed.thread_pool distributed.data_parallel",
    "distributed": "distributed",
    "nn": "nn nn.ddp",  # public names of layers; also imports the classes for many ranks, on first use
    "checkpoint": "checkpoint.*",
    "data": "data.*",
    "metrics": "metric tagi_utils",
    "models": "models.*",
    "estimators": "estimators.*",
    "onnx": "onnx.*",
    "plot": "notebook_figure plot",
    "training": "training.*",
    "forecasting": "forecasting.*",
    "package": "pytagi_ddp",
    "selfcheck": "selfcheck.*",
    "doctor": "doctor",
    "launch": "launch",
    "pytagi": "alias.* as_pytagi",
}


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Of each module those that it imports."""
    return {name: arrows(name, source) for name, source in SOURCES.items()}


def test_no_module_is_imported_while_it_waits_for_the_importer():
    before = {name: run_before(name, source) for name, source in SOURCES.items()}
    assert "pytagi_ddp.kernels.tensors" in before["pytagi_ddp.nn.core.parameters"]
    assert sum(map(len, before.values())) > 300
    assert circle(before) == []


def test_no_modules_import_each_other_in_a_circle(imports):
    """Imports for types alone count, and those inside functions."""
    assert sum(map(len, imports.values())) > 1000
    assert "pytagi_ddp.kernels.cpu.products._blas" in imports["pytagi_ddp.kernels.cpu.layers._linear"]
    assert circle(imports) == []


def groups_of(table: dict[str, str], modules: Iterable[str]) -> dict[str, str]:
    """The group of each module: by its own name, or else by that of the smallest package around it with `.*`."""
    named_in = {name: group for group, names in table.items() for name in names.split()}
    assert len(named_in) == sum(len(names.split()) for names in table.values()), "a name is in two groups"
    found, used = {}, set()
    for module in modules:
        packages = [".".join(module.split(".")[:k]) + ".*" for k in range(module.count(".") + 1, 0, -1)]
        name = next((name for name in (module, *packages) if name in named_in), None)
        assert name is not None, f"{module} is in no group: add it to one of GROUPS"
        found[module] = named_in[name]
        used.add(name)
    assert named_in.keys() == used, f"GROUPS has names of no module: {sorted(named_in.keys() - used)}"
    return found


def upward(table: dict[str, str], imports: dict[str, set[str]]) -> set[tuple[str, str]]:
    """The imports from a group that is later in `table` than that of the importer."""
    order, group = list(table), groups_of(table, imports)
    pairs = ((name, other) for name, others in imports.items() for other in others)
    return {(a, b) for a, b in pairs if order.index(group[b]) > order.index(group[a])}


def test_a_group_imports_only_groups_before_it(imports):
    short = {
        name.removeprefix("pytagi_ddp."): {other.removeprefix("pytagi_ddp.") for other in others}
        for name, others in imports.items()
    }
    assert upward(GROUPS, short) == set(), "a file imports one of a later group of GROUPS"
