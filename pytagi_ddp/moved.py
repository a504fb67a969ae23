"""Modules that have moved are found by their old names too: pickles of earlier versions name them."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Programs may import modules of `distributed` by their old names. A pickle of an `OutputUpdater` names a function of
# `kernels`, and one of an output that was on a GPU its class.
MOVED = {
    "pytagi_ddp.distributed.crew": "pytagi_ddp.distributed.thread_pool",
    "pytagi_ddp.distributed.engine.offspring": "pytagi_ddp.distributed.engine.child_process",
    "pytagi_ddp.distributed.trees": "pytagi_ddp.distributed.synchronization",
    "pytagi_ddp.distributed.wire": "pytagi_ddp.distributed.compression",
    "pytagi_ddp.kernels.cpu.output_update": "pytagi_ddp.kernels.cpu.layers.output_update",
    "pytagi_ddp.kernels.cuda.arrival": "pytagi_ddp.kernels.cuda.runtime.arrival",
    "pytagi_ddp.kernels.cuda.output_update": "pytagi_ddp.kernels.cuda.layers.output_update",
    "pytagi_ddp.nn.pending": "pytagi_ddp.nn.core.step",
    "pytagi_ddp.nn.rms_norm": "pytagi_ddp.nn.layers.rmsnorm",  # of later versions of pytagi, as the next one
    "pytagi_ddp.nn.tlstm": "pytagi_ddp.nn.layers.lstm",
    "pytagi_ddp.nn.validate": "pytagi_ddp.validate",
}

# Files of `pytagi_ddp.nn` by the package that contains them now. pytagi has modules of these names in its `nn`, too.
PACKAGES = {
    "core": """
        alone arena data_struct deferred forgetting hooks init layer parameters
        prior pytagi_view state stepping table window
    """,
    "layers": """
        activation attention batch_norm chain conv2d convolution convtranspose2d embedding layer_block
        layer_norm linear lstm norm pooling recompute resnet_block rmsnorm slinear slstm
    """,
    "run": "memory network_input output_updater passes",
    "files": "architecture persistence pytagi_format",
    "tools": "inspection profile recurrent_network update_bn",
    "convert": "torch_modules torch_state",
}
MOVED |= {
    f"pytagi_ddp.nn.{name}": f"pytagi_ddp.nn.{package}.{name}"
    for package, names in PACKAGES.items()
    for name in names.split()
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
    """Makes Python find these modules, where it finds none under a name itself.

    Modules that are loaded get their old names at once. An import through `_Moved` would bind the name in
    `pytagi_ddp.nn` anew, where it may be that of a function (`update_bn`).
    """
    for name, place in MOVED.items():
        if place in sys.modules:
            sys.modules[name] = sys.modules[place]
            package, _, last = name.rpartition(".")
            vars(sys.modules[package]).setdefault(last, sys.modules[place])
    sys.meta_path.append(_Moved())
