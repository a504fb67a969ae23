"""How long threads of GNU OpenMP spin at the end of a parallel loop before they sleep.

Left to itself, the library spins for some milliseconds. That pays only where every thread has a core to itself all the
time: beside other work, it made a step with two threads 85 times as long as with one, as a core that spins is one that
the thread which is waited for does not have. `python -m benchmarks.waiting` measures it.

The library reads its setting once, when it is loaded. So it is set around the first load of a module that needs it,
unless the user has set one, and taken back, as processes that are started later make up their own minds.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

SPINS = "100"
VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
NOT_LOADED = "not settled yet: GNU OpenMP is not loaded"
_state = NOT_LOADED


def describe() -> str:
    """What is in force, and who has set it."""
    return _state


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """If GNU OpenMP is loaded within the block, it gets a short wait."""
    global _state
    if _state != NOT_LOADED:
        yield
        return
    given = [f"{name}={os.environ[name]}" for name in VARIABLES if os.environ.get(name)]
    if given:
        _state = f"as {' and '.join(given)} say" + "s" * (len(given) == 1)
        yield
    elif _is_loaded():
        _state = (
            f"as another library has set it, which loaded GNU OpenMP first; set GOMP_SPINCOUNT={SPINS} at the start"
        )
        yield
    else:
        os.environ["GOMP_SPINCOUNT"] = SPINS
        try:
            yield
        finally:
            del os.environ["GOMP_SPINCOUNT"]
        if _is_loaded():  # not every module needs it
            _state = f"short, {SPINS} spins (GOMP_SPINCOUNT)"


def _is_loaded() -> bool:
    """Whether libgomp is there already: the system's, or our wheel's copy. Others' have their own threads."""
    try:
        files = Path("/proc/self/maps").read_text()
    except OSError:
        return False
    return "/libgomp.so.1" in files or "/pytagi_ddp.libs/libgomp" in files
