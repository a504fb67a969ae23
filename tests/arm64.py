"""Builds and tests the library on arm64 Linux, which this machine emulates.

    python -m tests.arm64                       # everything, in a temporary folder; also `make arm64`
    python -m tests.arm64 --folder ../arm64     # keeps the files of the system there, for the next time
    python -m tests.arm64 --step ranks          # one step; others are those of STEPS

It needs Debian or Ubuntu on x86-64, their packages `gcc-aarch64-linux-gnu`, `libc6-dev-arm64-cross`, `mmdebstrap` and
`qemu-user-static`, and the wheels of a package index. An arm64 Python of the same distribution and arm64 wheels of
NumPy, SciPy, Numba and MPICH are put into a folder, which is the root of all that is emulated (`chroot`, in a namespace
of its own: nothing of this machine changes). Only the C compiler is not emulated, so that it takes minutes. Times say
nothing about processors of this kind. The exit code is 1 if something failed.
"""

import argparse
import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.clean_tree import copy_c_code, source_tree
from tests.interpreters import GOLDEN, NEEDS

TOOLS = ("aarch64-linux-gnu-gcc", "mmdebstrap", "qemu-aarch64-static", "unshare")
PLATFORMS = [f"--platform=manylinux{level}_aarch64" for level in ("2014", "_2_27", "_2_28", "_2_34", "_2_36")]
# Programs for arm64 are run by qemu: what the first bytes of such a program are, and which of their bits count.
BINARY = r":arm64:M::\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00:" + r"\xff" * 7 + r"\x00" + r"\xff" * 8
BINARY += r"\xfe\xff\xff\xff:{qemu}:F"
ENTER = """
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf %s {binary} > /proc/sys/fs/binfmt_misc/register
cd {root}
mkdir -p proc sys host dev/shm root
mount -t proc none proc
mount --rbind /sys sys
mount --rbind /dev dev
mount --rbind / host
exec chroot . /usr/bin/env -i HOME=/root LC_ALL=C.UTF-8 PATH=/env/bin:/usr/bin:/bin /bin/sh -ec {command}
"""
# Of the recorded cases, as an expression of `pytest -k`: some of each kind of kernel.
SOME = "resnet_strided or conv_maxpool_k2 or lstm_t4 or hierarchical or heteros or layernorm_fc or embedding_padding"
PYTEST = "python -m pytest -q -p no:cacheprovider --timeout=0"
SUBJECTS = ("products", "moment_products", "conv2d", "pooling", "transpose", "flush")
KERNELS = " ".join(f"tests/kernels/test_{name}.py" for name in SUBJECTS)
FIRST = "Linear or Conv2d or BatchNorm2d or MaxPool2d or ResNetBlock or LSTM or MultiheadAttention"
TWO_RANKS = """
from pytagi_ddp.distributed.communicator import create_communicator
from tests.mpi.test_ddp import sum_of_ranks
communicator = create_communicator("mpi", timeout=3600)
found = sum_of_ranks(communicator)
communicator.close()
assert all(error < 2e-5 and equal for error, equal in found.values()), found
"""
STEPS = {
    "build": "CFLAGS=-w python setup.py --quiet build_ext --inplace --parallel {cores}",
    "doctor": "python -m pytagi_ddp.doctor",
    "golden": f"{PYTEST} {GOLDEN} -k '{SOME}'",
    "kernels": f"{PYTEST} {KERNELS} -m 'not slow'",
    "battery": f"{PYTEST} tests/battery/test_layers.py -k 'equals_float64 and ({FIRST})'",
    # qemu cannot read another process's memory, as MPICH does for large messages (CMA).
    "ranks": f"MPIR_CVAR_CH4_CMA_ENABLE=0 UCX_TLS=^cma mpirun -np 2 python -c {shlex.quote(TWO_RANKS)}",
}


def make_system(root: Path) -> None:
    """An arm64 system with Python, the packages that the library needs, and this compiler."""
    root.mkdir(parents=True)
    packages = "python3,python3-venv,libpython3-dev,libgomp1,libstdc++6,dash,coreutils"
    release = dict(line.partition("=")[::2] for line in Path("/etc/os-release").read_text().splitlines())
    suite = release["VERSION_CODENAME"].strip('"')
    made = ["mmdebstrap", "--quiet", "--architectures=arm64", "--variant=extract", f"--include={packages}", suite]
    subprocess.run([*made, str(root)], check=True)
    python = os.readlink(root / "usr/bin/python3").removeprefix("python")
    listed = [name.partition(";") for name in importlib.metadata.requires("pytagi-ddp") or ()]
    needed = [name for name, _, condition in listed if "extra" not in condition or "mpi" in condition]
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", *PLATFORMS]
    download += [f"--python-version={python}", "--dest", str(root / "wheels"), *needed, *NEEDS]
    subprocess.run([*download, "cython>=3.2", "setuptools>=77"], check=True)
    # The compiler finds its files, and the system its loader, where they are on this machine.
    for name in ("lib64", "lib/x86_64-linux-gnu", "usr/lib/gcc-cross", "usr/aarch64-linux-gnu"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"/host/{name}")
    (root / "usr/bin/aarch64-linux-gnu-gcc").symlink_to(f"/host{os.path.realpath(str(shutil.which(TOOLS[0])))}")
    inside(root, "/usr/bin/python3 -m venv /env && pip install --quiet --no-compile --no-index /wheels/*.whl")


def inside(root: Path, command: str) -> None:
    """Runs a command of a shell there.

    Raises:
        CalledProcessError: it failed.
    """
    binary = shlex.quote(BINARY.format(qemu=shutil.which("qemu-aarch64-static")))
    script = ENTER.format(binary=binary, root=shlex.quote(str(root)), command=shlex.quote(command))
    apart = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]
    subprocess.run([*apart, "/bin/sh", "-ec", script], check=True, stdin=subprocess.DEVNULL)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.arm64", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, help="where to make the system, or where it is already")
    parser.add_argument("--step", action="append", choices=STEPS, help="only this; may be given several times")
    options = parser.parse_args(arguments)
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        parser.error(f"{', '.join(missing)} is missing; the first lines of {__file__} name the packages")
    with tempfile.TemporaryDirectory() as temporary:
        root, began, failed = (options.folder or Path(temporary)).resolve() / "root", time.monotonic(), []
        commands = {name: STEPS[name].format(cores=os.cpu_count()) for name in options.step or STEPS}
        if not (root / "env/bin/python").exists():
            make_system(root)
            print(f"system: made in {time.monotonic() - began:.0f} s", flush=True)
        (root / "source/pytagi_ddp/kernels").unlink(missing_ok=True)  # a link, which is made only once
        copy_c_code(source_tree(root / "source"))
        for name, command in commands.items():
            start = time.monotonic()
            try:
                inside(root, f"cd /source; {command}")
            except subprocess.CalledProcessError:
                failed.append(name)
            print(f"{name}: {'failed' if name in failed else 'passed'} in {time.monotonic() - start:.0f} s", flush=True)
        print(f"{len(failed)} of {len(commands)} failed, in {time.monotonic() - began:.0f} s in all")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
