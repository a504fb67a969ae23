"""A copy of the sources as a clone would have them, and a compiler that is quick with them."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = "pytagi_ddp/_memoryviews.c"  # made by Cython for all modules


def source_tree(folder: Path) -> Path:
    """A copy of what is under version control, as a clone would have it."""
    git = shutil.which("git")
    listed = git and subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if not listed or listed.returncode:
        pytest.skip("not a git checkout: the list of source files is unknown")
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


def copy_c_code(folder: Path) -> None:
    """Puts the C code that Cython has made of these sources into a `source_tree`, where it is not made again then."""
    for source in folder.rglob("*.pyx"):
        made = (ROOT / source.relative_to(folder)).with_suffix(".c")
        if made.exists() and made.stat().st_mtime > source.stat().st_mtime:
            shutil.copy2(made, source.with_suffix(".c"))
    if (ROOT / SHARED).exists():
        shutil.copy2(ROOT / SHARED, folder / SHARED)


def hasty(compiler: str, folder: Path, without: str = "-no-such-flag") -> str:
    """A command that is the compiler without optimisation, which takes a seventh of the time, and without a flag."""
    wrapper = folder / "cc"
    wrapper.write_text(f'#!/bin/sh\nfor word; do [ "$word" = {without} ] && exit 1; done\nexec {compiler} "$@" -O0\n')
    wrapper.chmod(0o755)
    return str(wrapper)
