"""Recorded results ("golden" files) that tests compare with, and the command that checks that nobody has changed them.

`*.npz` have all numbers of some training steps of pytagi 0.2.1, for each layer. `pytagi_files` has networks that pytagi
trained, saved and evaluated, and `pytagi_ddp_files` a network in the file format of an earlier version of this library.

    python -m tests.golden             # checks that the files here are those in SHA256SUMS, and no others
    python -m tests.golden FOLDER      # checks files of the same names in FOLDER, from where they were copied
    cd tests/golden && sha256sum *.npz *_files/* > SHA256SUMS    # to be run after a file was added
"""

import hashlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
SUMS = HERE / "SHA256SUMS"


def recorded() -> dict[str, str]:
    """The checksum of each file, as SHA256SUMS has it."""
    return {name: digest for digest, name in (line.split() for line in SUMS.read_text().splitlines())}


def found(folder: Path) -> dict[str, str]:
    """The checksums of the files in `folder`, without those of this command."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    names = {path.relative_to(folder).as_posix(): path for path in files if path != SUMS}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in names.items()}


def differences(folder: Path = HERE) -> list[str]:
    """What is wrong with the files of `folder`, one line each; another folder than this may lack files or have more."""
    wanted, there = recorded(), found(folder)
    lines = [f"{name} has other bytes" for name in sorted(wanted) if there.get(name, wanted[name]) != wanted[name]]
    if folder == HERE:
        lines += [f"{name} is missing" for name in sorted(wanted.keys() - there.keys())]
        lines += [f"{name} is not in {SUMS.name}" for name in sorted(there.keys() - wanted.keys())]
    elif not wanted.keys() & there.keys():
        lines.append(f"{folder} has none of the files")
    return lines


def main(arguments: list[str]) -> int:
    """Prints what is wrong; returns the exit code."""
    folder = Path(arguments[0]) if arguments else HERE
    lines = differences(folder)
    common = len(recorded().keys() & found(folder).keys())
    print("\n".join(lines) or f"{common} of {len(recorded())} files of {SUMS} are there, with the same bytes")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
