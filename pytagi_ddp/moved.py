"""Modules that have moved are found by their old names too: pickles of earlier versions name them."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# A pickle of an `OutputUpdater` names a function, and one of an output that was on a GPU its class.
MOVED = {
    "pytagi_ddp.kernels.cpu.output_update": "pytagi_ddp.kernels.cpu.layers.output_update",
    "pytagi_ddp.kernels.cuda.arrival": "pytagi_ddp.kernels.cuda.runtime.arrival",
    "pytagi_ddp.kernels.cuda.output_update": "pytagi_ddp.kernels.cuda.layers.output_update",
}


class _Moved(MetaPathFinder, Loader):
    """Gives the module at the new place to an import by the old name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(MOVED[module.__name__])


def install() -> None:
    """Makes Python find these modules, where it finds none under a name itself."""
    sys.meta_path.append(_Moved())
