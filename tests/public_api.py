"""What is public, and what differs from the last release: `python -m tests.public_api`.

Names, arguments, their kinds and defaults, and public members of classes, of the package and its public modules. What
the last release had is recorded in `public_api.json`.

    python -m tests.public_api             # says what changed since; exits with 1 if a program could break
    python -m tests.public_api --record    # for a release: writes the file
"""

import argparse
import importlib
import inspect
import json
import re
import sys
from enum import Enum
from pathlib import Path
from types import ModuleType

from tests.test_docs import MODULES

RECORD = Path(__file__).with_name("public_api.json")
PLACE = re.compile(r" at 0x[0-9a-f]+|(?<=<class ')[\w.]+\.")  # where an object lies, and the module of a class
BY_NAME = " (by name)"
# What only networks call in their layers. It was in no page before version 0.3.0, and programs have no use for it.
CALLED_BY_NETWORKS = {
    *("attach", "attach_state", "backward", "backward_onto", "begin", "buffer_bytes", "check_input", "checks_input"),
    *("claim", "detach", "draw_prior", "forward", "is_a_formula", "is_leaf", "keep_state", "kept", "made"),
    *("needs_moments", "normalisation_moments", "num_sums", "parts", "put_away", "recomputing", "release", "set_hooks"),
    *("set_workspace", "take_up", "takes", "takes_moments_of", "update_running"),
}
# What the next version removes: names, and arguments of functions. CHANGELOG.md lists them under "Removed".
REMOVED = {
    "pytagi_ddp.cuda.is_simulated",
    "pytagi_ddp.distributed.Communicator.shared_zeros",
    "pytagi_ddp.distributed.Communicator.start_reduce_shared",
    *(f"pytagi_ddp.{module}.DDPConfig.share_memory" for module in ("distributed", "nn")),
    *(f"pytagi_ddp.{module}.DDPConfig.__init__(share_memory=True)" for module in ("distributed", "nn")),
    *(f"pytagi_ddp.nn.Sequential.{name}" for name in ("first_layer", "forget_graphs", "is_deferred", "keep_layers")),
    *(f"pytagi_ddp.nn.Sequential.{name}" for name in ("pass_forward", "pending", "rehouse", "reset_state")),
    *(f"pytagi_ddp.nn.Sequential.{name}" for name in ("use_frame", "visits")),
}
Api = dict[str, list[str] | str]  # a function's arguments, or what else it is, by full name


def described(thing: object) -> list[str] | str:
    """A function's arguments, or what else it is."""
    if isinstance(thing, property) and thing.fset:
        return "value"  # it is read and assigned in the same way
    if isinstance(thing, property) or inspect.isdatadescriptor(thing):
        return "property"
    thing = thing.__func__ if isinstance(thing, staticmethod | classmethod) else thing
    if not callable(thing):
        return "value"
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):  # compiled
        return "callable"
    bare = [item.replace(annotation=inspect.Parameter.empty) for item in parameters]
    marks = {inspect.Parameter.KEYWORD_ONLY: BY_NAME, inspect.Parameter.POSITIONAL_ONLY: " (by place)"}
    return [PLACE.sub("", str(item)) + marks.get(item.kind, "") for item in bare]


def names_of(module: ModuleType) -> list[str]:
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return sorted(getattr(module, "__all__", [name for name in own if not name.startswith("_")]))


def public_api() -> Api:
    """What each public name is, by its full name. What a class inherits from a public one stands there only."""
    modules = [importlib.import_module(f"pytagi_ddp.{name}".rstrip(".")) for name in ("", *MODULES)]
    public = [(f"{module.__name__}.{name}", getattr(module, name)) for module in modules for name in names_of(module)]
    classes = {thing for _, thing in public if isinstance(thing, type)}
    found: Api = {}
    for full, thing in public:
        if isinstance(thing, ModuleType):
            found[full] = "module"
        elif isinstance(thing, type):
            found[full] = " ".join(
                ["class of", *sorted(base.__name__ for base in thing.__mro__[1:] if base in classes)]
            )
            if not issubclass(thing, Enum | BaseException):
                found[f"{full}.__init__"] = described(thing)
            for base in reversed(thing.__mro__):
                if base is thing or (base.__module__.startswith("pytagi_ddp") and base not in classes):
                    members = [name for name in vars(base) if not re.match(r"_|set_\w+_request$", name)]
                    members = [name for name in members if hasattr(base, name)]  # else it says what to do instead
                    found |= {f"{full}.{name}": described(vars(base)[name]) for name in members}
        else:
            found[full] = described(thing)
    return found


def extends(before: list[str] | str, now: list[str] | str) -> bool:
    """Whether every call that had a meaning has it still: arguments were added that need not be given, or have got the
    default None, which then has to mean what the default was."""
    if isinstance(before, str) or isinstance(now, str):
        return isinstance(before, str) and isinstance(now, str) and {*before.split()} <= {*now.split()}
    defaults = {re.sub(r"=.*?( \(by \w+\))?$", r"=None\1", item): item for item in before}
    now = [defaults.get(item, item) for item in now]
    places, more = [item for item in before if BY_NAME not in item], [item for item in now if BY_NAME not in item]
    added = [*more[len(places) :], *(item for item in now if BY_NAME in item and item not in before)]
    kept = more[: len(places)] == places and {item for item in before if BY_NAME in item} <= {*now}
    return kept and all("=" in item or item.startswith("*") for item in added)


def compare(before: Api, now: Api) -> tuple[list[str], list[str]]:
    """(what breaks programs, what is new), a line each."""
    broken = []
    new = [f"new       {_shown(name, what)}" for name, what in now.items() if name not in before]
    for name, was in before.items():
        if _is_called_by_networks(name, before):
            continue
        found = now.get(name, inherited(name, now))
        if found is None:
            broken.append(f"gone      {_shown(name, was)}")
        elif found != was and (was, found) != ("property", "value"):  # which is read in the same way
            kind, lines = ("extended", new) if extends(was, found) else ("changed ", broken)
            lines.append(f"{kind}  {_shown(name, was)} -> {_shown('', found)}")
    return broken, new


def _is_called_by_networks(name: str, api: Api) -> bool:
    """Whether `name` is a member of a layer that is among `CALLED_BY_NETWORKS`."""
    owner, _, member = name.rpartition(".")
    is_layer = owner.endswith(".BaseLayer") or "BaseLayer" in str(api.get(owner, "")).split()
    return is_layer and member in CALLED_BY_NETWORKS


def inherited(name: str, now: Api) -> list[str] | str | None:
    """What a member of a class is that the class has from a public one of the same module."""
    owner, _, member = name.rpartition(".")
    bases = str(now.get(owner, "")).removeprefix("class of").split()
    places = (f"{owner.rpartition('.')[0]}.{base}.{member}" for base in bases)
    return next((now[place] for place in places if place in now), None)


def _shown(name: str, what: list[str] | str) -> str:
    return f"{name}: {what}" if isinstance(what, str) else f"{name}({', '.join(what)})"


def recorded() -> Api:
    """The public API of the last release, without what was removed on purpose."""
    api: Api = {}
    for name, what in json.loads(PLACE.sub("", RECORD.read_text())).items():
        if name not in REMOVED:
            arguments = isinstance(what, list)
            api[name] = [item for item in what if f"{name}({item})" not in REMOVED] if arguments else what
    return api


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.public_api", description=__doc__.partition(":")[0])
    parser.add_argument("--record", action="store_true", help="write the file: what there is now is a release")
    now = public_api()
    if parser.parse_args(argv).record:
        lines = [f"{json.dumps(name)}: {json.dumps(what)}" for name, what in sorted(now.items())]
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return 0
    broken, new = compare(recorded(), now)
    print(
        "\n".join(
            [*broken, *new, f"{len(now)} public names: {len(broken)} gone or changed, {len(new)} new or extended"]
        )
    )
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
