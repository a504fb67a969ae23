"""Modules of the package import each other in one direction."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The folder `kernels` is the package `pytagi_ddp.kernels`, through a link.
FILES = [*(ROOT / "pytagi_ddp").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "pytagi_ddp" else ("pytagi_ddp", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The statements under `node` that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from at_import(child)


def imported(name: str, source: str) -> set[str]:
    """Modules of the package that run before `name` does: those it names, and the packages that these are in.

    Not the packages that `name` itself is in: they have begun before.
    """
    named = set()
    for node in at_import(ast.parse(source)):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: the package has no relative imports"
            # `from package import name` may name a module of the package, or what stands in it.
            found = {f"{node.module}.{alias.name}" for alias in node.names}
            named |= found & MODULES.keys() or {node.module}
            named |= {node.module} if found - MODULES.keys() else set()
    with_packages = {".".join(module.split(".")[:k]) for module in named for k in range(1, module.count(".") + 2)}
    return {module for module in with_packages & MODULES.keys() if not f"{name}.".startswith(f"{module}.")}


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a ring; empty if there are none."""
    done: set[str] = set()

    def follow(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for other in sorted(imports.get(name, ())):
                if found := follow(other, [*path, name]):
                    return found
            done.add(name)
        return []

    return next(filter(None, (follow(name, []) for name in sorted(imports))), [])


def test_no_module_imports_itself_by_way_of_others():
    imports = {name: imported(name, path.read_text()) for name, path in MODULES.items()}
    assert "pytagi_ddp.kernels.tensors" in imports["pytagi_ddp.nn.parameters"]
    assert sum(map(len, imports.values())) > 300
    assert circle(imports) == []


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []
    late = "def f():\n    import pytagi_ddp.nn\nif TYPE_CHECKING:\n    from pytagi_ddp.nn import Linear\n"
    assert imported("pytagi_ddp.files", late) == set()
    assert imported("pytagi_ddp.files", "try:\n    from pytagi_ddp.nn import linear, Linear\nfinally: pass") == {
        "pytagi_ddp.nn",
        "pytagi_ddp.nn.linear",
    }
