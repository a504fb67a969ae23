"""The time that threads of GNU OpenMP spin at the end of a parallel loop before they sleep.

Waking a thread takes 3 to 80 microseconds, as long as a loop of a small network. But a spinning thread occupies a core,
which the thread that it waits for may need. So threads spin for a moderate time, and only briefly under CPU contention
(`contention.h`; measurements are in benchmarks/NOTES.md).

GNU OpenMP reads the environment variable when it is loaded. So the variable is set during each import that may load it,
unless the user has set one, and removed afterwards, so that child processes do not inherit it.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pytagi_ddp.text import text_of

SHORT = "100"  # if contention cannot be detected
SPINS = "10000" if os.path.exists("/proc/self/schedstat") else SHORT  # 0.15 ms or more: longer than most gaps of loops
VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
NOT_LOADED = "not settled yet: GNU OpenMP is not loaded"
ADAPTED = f"{SPINS} spins, {SHORT} while other programs want the cores (GOMP_SPINCOUNT)"
_state = NOT_LOADED


def describe() -> str:
    """The present setting and its origin."""
    return _state


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """If GNU OpenMP is loaded within the block, its threads spin `SPINS` times."""
    global _state
    if _state != NOT_LOADED:
        yield
        return
    given = [f"{name}={os.environ[name]}" for name in VARIABLES if os.environ.get(name)]
    before = _copies()
    if not given:
        os.environ["GOMP_SPINCOUNT"] = SPINS
    try:
        yield
    finally:
        if not given:
            os.environ.pop("GOMP_SPINCOUNT", None)  # another thread may have removed it
    if not (loaded := _copies()):  # not every module loads it
        return
    if given:
        _state = f"as {' and '.join(given)} say" + "s" * (len(given) == 1)
    elif loaded == before:
        _state = (
            f"as another library has set it, which loaded GNU OpenMP first; set GOMP_SPINCOUNT={SHORT} at the start"
        )
    else:
        _state = ADAPTED if SPINS != SHORT else f"{SPINS} spins (GOMP_SPINCOUNT)"


def _copies() -> set[str]:
    """The loaded copies of libgomp that run our threads: that of the system, and that in our wheel."""
    try:
        files = text_of(Path("/proc/self/maps"))
    except OSError:
        return set()
    return {name for name in ("/libgomp.so.1", "/pytagi_ddp.libs/libgomp") if name in files}
