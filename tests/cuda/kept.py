"""Keeps compiled PTX between runs: NVVM takes minutes for all kernels, and several tests need the same."""

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from pytagi_ddp.kernels.cpu.runtime.compile import cache_folder

ROOT = Path(__file__).parents[2]
DAYS = 14  # that a file is kept which nobody asks for


def folder(name: str) -> Path:
    """A folder beside that of compiled loops, without what has not been used for long."""
    base = cache_folder()
    made = (base.parent if base else Path(tempfile.mkdtemp())) / f"tests-{name}"
    made.mkdir(parents=True, exist_ok=True)
    for path in made.iterdir():
        if path.is_file() and path.stat().st_mtime < time.time() - DAYS * 86400:
            path.unlink(missing_ok=True)
    return made


def letters(variant: tuple[bool, ...]) -> str:
    """Which optional arguments of a kernel are absent and present."""
    return "".join("ap"[present] for present in variant)


def fresh(path: Path) -> bool:
    """Whether a file is there; it counts as used."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def only_here(path: Path) -> Iterator[None]:
    """No other process is about to make this file: neither kernels nor programs are compiled twice at once."""
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    with suppress(FileNotFoundError):
        os.unlink(lock.name)


def keep(path: Path, content: str) -> None:
    """Writes a file whole or not at all, whatever other processes do."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)


def keep_ptx() -> None:
    """Makes kernels of this process take their PTX from a folder, named after sources and compilers, if it is there."""
    from pytagi_ddp.kernels.cuda.runtime.compile import Kernel  # here, as it needs numba-cuda

    digest = hashlib.sha256("".join(version(name) for name in ("numba-cuda", "numba", "llvmlite", "numpy")).encode())
    for path in sorted([*(ROOT / "kernels/cuda").rglob("*.py"), *(ROOT / "kernels/formulas").glob("*.py")]):
        digest.update(path.name.encode() + path.read_bytes())
    place, compiled = folder("ptx"), Kernel._ptx

    def ptx(kernel, variant: tuple[bool, ...]) -> str:
        path = place / f"{kernel.name}-{letters(variant)}-{digest.hexdigest()[:16]}.ptx"
        if not fresh(path):
            with only_here(path):
                if not fresh(path):
                    keep(path, compiled(kernel, variant))
        return path.read_text()

    Kernel._ptx = ptx
