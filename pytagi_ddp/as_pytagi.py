"""Runs programs written for pytagi without changes: `python -m pytagi_ddp.as_pytagi PROGRAM.py ARGUMENTS ...`.

It runs modules too, as `python -m` does: `python -m pytagi_ddp.as_pytagi -m examples.classification ARGUMENTS ...` in a
clone of pytagi, or `-m pytest`.

In these programs `import pytagi` gives this library, and so do the modules of pytagi (`pytagi.nn`, `pytagi.nn.linear`,
`pytagi.metric`, ...). In a program or notebook of your own, `import pytagi_ddp.as_pytagi` before the first
`import pytagi` does the same.
"""

import runpy
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

import pytagi_ddp
from pytagi_ddp.moved import MOVED

USAGE = "usage: python -m pytagi_ddp.as_pytagi PROGRAM.py ARGUMENTS ..., or -m MODULE ARGUMENTS ..."
ALIAS = str(Path(__file__).with_name("alias"))
MODULES = ("", ".cuda", ".metric", ".tagi_utils", ".nn")


def install() -> None:
    """Makes `import pytagi` give this library in this process.

    Raises:
        ImportError: pytagi itself has been imported already.
    """
    present = sys.modules.get("pytagi")
    if present is not None and present is not pytagi_ddp:
        raise ImportError("pytagi itself has been imported already; import pytagi_ddp.as_pytagi before it")
    if sys.path[:1] != [ALIAS]:
        sys.path.insert(0, ALIAS)  # processes that are started by "spawn" or "forkserver" inherit this path
    layers = (f".nn.{module.name}" for module in iter_modules(pytagi_ddp.nn.__path__) if not module.ispkg)
    moved = (name.removeprefix("pytagi_ddp") for name in MOVED if name.startswith("pytagi_ddp.nn."))
    for name in (*MODULES, *layers, *moved):
        sys.modules[f"pytagi{name}"] = import_module(f"pytagi_ddp{name}")


def main(argv: Sequence[str]) -> None:
    """Runs a program, with its arguments, as `python PROGRAM.py` or `python -m MODULE` would."""
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE)
        return
    if not argv or list(argv) == ["-m"] or (argv[0].startswith("-") and argv[0] != "-m"):
        raise SystemExit(USAGE)
    if argv[0] == "-m":
        sys.path[1] = str(Path.cwd())  # after ALIAS
        if not _is_module(argv[1]):
            raise SystemExit(f"there is no module {argv[1]}\n{USAGE}")
        sys.argv = list(argv[1:])
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    if not Path(argv[0]).exists():
        raise SystemExit(f"there is no program {argv[0]}\n{USAGE}")
    sys.argv = list(argv)
    sys.path[1] = str(Path(argv[0]).resolve().parent)
    runpy.run_path(argv[0], run_name="__main__")


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


install()

if __name__ == "__main__":
    main(sys.argv[1:])
