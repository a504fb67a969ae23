"""Compiled loops are kept between processes, and never meet sources other than their own."""

import compileall
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numba
import numpy as np
import pytest

from pytagi_ddp.kernels.checksummed import read_checksummed
from pytagi_ddp.kernels.cpu.runtime import compile, shared_cache
from pytagi_ddp.kernels.cpu.runtime.shared_cache import SUFFIX, share

pytestmark = pytest.mark.slow  # starts processes of its own

ROOT = Path(__file__).parents[2]
# One number through LeakyReLU, whose kernel is made from a formula of one line.
PROGRAM = """
from pytagi_ddp import nn
net = nn.Sequential(nn.LeakyReLU(), nn.Linear(1, 1, bias=False))
net.layers[1].mu_w = [1]
net.eval()
print(net([-8.0])[0][0])
"""


def copy_package(into: Path) -> Path:
    hidden = shutil.ignore_patterns("cuda")
    for folder in ("kernels", "pytagi_ddp"):
        shutil.copytree(ROOT / folder, into / folder, symlinks=True, ignore=hidden)
    if not (into / "pytagi_ddp" / "kernels").exists():
        pytest.skip("the package is installed, not a source tree: there is nothing to edit")
    return into


@pytest.fixture
def tree(tmp_path) -> Path:
    """A copy of the package, with its own cache beside it."""
    return copy_package(tmp_path)


@pytest.fixture(scope="module")
def filled_once() -> Iterator[Path]:
    """A copy of the package whose cache is filled, in a folder that every user can enter, unlike pytest's."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        tree = Path(folder, "tree")
        for made in (tree, tree / "cache"):
            made.mkdir(mode=0o755)
        assert run(copy_package(tree)) == pytest.approx(-0.8)
        shutil.copytree(tree / "cache", Path(folder, "kept"))
        yield tree


@pytest.fixture
def filled_tree(filled_once) -> Iterator[Path]:
    """`filled_once`, for one test: its cache becomes as it was."""
    yield filled_once
    for changed in set(os.listdir(filled_once)) - {"kernels", "pytagi_ddp"}:
        path = filled_once / changed
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(filled_once.parent / "kept", filled_once / "cache")


def run(tree: Path, program: str = PROGRAM, launcher: Sequence[str] = ()) -> float:
    return said(tree, program, launcher)[0]


def said(tree: Path, program: str = PROGRAM, launcher: Sequence[str] = ()) -> tuple[float, str]:
    """The number that a program prints, and its warnings."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tree / "cache")}
    command = [*launcher, sys.executable, "-c", program]
    result = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return float(result.stdout), result.stderr


def files(tree: Path) -> dict[Path, int]:
    """The files of compiled code, with the time of their last change."""
    return {path: path.stat().st_mtime_ns for path in (tree / "cache").rglob(f"*{SUFFIX}")}


def edit(tree: Path) -> tuple[Path, str]:
    """Edits the formula of LeakyReLU; the file, and what was in it."""
    formula = tree / "kernels" / "formulas" / "activation.py"
    original, slope = formula.read_text(), "else negative_slope"
    assert original.count(slope) == 1
    formula.write_text(original.replace(slope, f"{slope} + HALF"))
    return formula, original


@pytest.mark.slow
def test_an_edited_formula_never_meets_a_stale_cache(tree):
    assert run(tree) == pytest.approx(-0.8)
    compiled = files(tree)
    assert compiled, "nothing was kept"

    formula, original = edit(tree)
    assert run(tree) == pytest.approx(-4.8)
    assert compiled.items() < files(tree).items()

    formula.write_text(original)
    both = files(tree)
    assert run(tree) == pytest.approx(-0.8)
    assert files(tree) == both, "the first cache was not found again"


def leave_out_sources(tree: Path) -> None:
    """Replaces each `.py` file by its `.pyc` file."""
    for folder in (tree / "kernels", tree / "pytagi_ddp"):  # links are not followed
        assert compileall.compile_dir(folder, quiet=1, legacy=True)
        for path in folder.rglob("*.py"):
            path.unlink()


# Counts the loops that are compiled, not loaded, and prints their number instead.
COUNT = """
import numba.core.event as event
class Count(event.Listener):
    compiled = 0
    def on_start(self, started):
        self.compiled += 1
    def on_end(self, ended):
        pass
count = Count()
event.register("numba:compile", count)
"""
COUNTING = COUNT + PROGRAM.replace("print(net([-8.0])[0][0])", "net([-8.0])\nprint(count.compiled)")


def test_a_package_without_sources_keeps_its_loops(tree):
    shutil.copytree(tree / "kernels", tree / "another version" / "kernels")
    leave_out_sources(tree)
    assert run(tree) == pytest.approx(-0.8)
    assert run(tree, COUNTING) == 0

    shutil.rmtree(tree / "kernels")
    edit(tree / "another version")
    (tree / "another version" / "kernels").rename(tree / "kernels")
    leave_out_sources(tree)
    assert run(tree) == pytest.approx(-4.8)


def test_a_frozen_application_has_a_cache_of_its_own(tmp_path, monkeypatch):
    program = tmp_path / "program"
    monkeypatch.setattr(compile, "__file__", str(tmp_path / "kernels" / "cpu" / "runtime" / "compile.py"))
    monkeypatch.setattr(sys, "executable", str(program))
    hashes = set()
    for content, seconds in ((b"1", 1), (b"12", 1), (b"12", 2)):
        program.write_bytes(content)
        os.utime(program, (seconds, seconds))
        hashes.add(compile._source_hash())
    monkeypatch.setattr(compile, "version", lambda: "9.9.9")
    hashes.add(compile._source_hash())
    assert len(hashes) == 4


def test_a_filled_cache_that_can_only_be_read_is_used(filled_tree):
    launcher = []
    if os.geteuid() == 0:  # who may write anywhere, unless this capability is taken away
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv, to test a read-only folder as root")
        launcher = ["setpriv", "--bounding-set=-dac_override"]
    tree = filled_tree
    filled = files(tree)
    folders = [tree / "cache", *(path for path in (tree / "cache").rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert run(tree, COUNTING, launcher) == 0
        # A loop that is missing there is compiled, and not kept.
        more = PROGRAM.replace("nn.LeakyReLU()", "nn.LeakyReLU(), nn.Tanh()").replace("layers[1]", "layers[2]")
        assert run(tree, more, launcher) == pytest.approx(math.tanh(-0.8))
        assert files(tree) == filled
    finally:
        for folder in folders:
            folder.chmod(0o755)


WARNING = "there is no place to keep compiled loops"


# As root with the user's number only in name: other users may not be able to read this Python.
WITHOUT_HOME = """
import os, pwd
os.environ.pop("HOME", None)
if os.getuid() == 0:
    os.setreuid(12345, 0)
else:
    pwd.getpwuid = {}.__getitem__
"""


def test_a_user_without_a_home_directory_gets_one_warning(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    program = WITHOUT_HOME + PROGRAM
    command = [sys.executable, "-c", program]
    environment["PYTHONPATH"] = str(ROOT)
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) == pytest.approx(-0.8)
    assert result.stderr.count(WARNING) == 1 and "set NUMBA_CACHE_DIR" in result.stderr
    line = program[: program.index("net = ")].count("\n") + 1  # which draws a prior by a loop
    assert f"<string>:{line}: RuntimeWarning: {WARNING}" in result.stderr
    assert not list(tmp_path.iterdir())


def test_loops_run_uncompiled_where_numba_is_told_not_to_compile(tree, monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert run(tree) == pytest.approx(-0.8)
    assert not files(tree)


OTHER = 65534  # another user of the machine, "nobody" on most systems
needs_users = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, to become another user"
)

# What another user does to a cache, in a process of its own: `folder` is below a folder that all may enter.
ATTACK = """
import glob, hashlib, os, pickle, sys
folder, mark = sys.argv[1:]
os.setgroups([]); os.setgid({gid}); os.setuid({uid})

class Poison:
    def __reduce__(self):
        return os.system, (f"touch {{mark}}",)

content, done = pickle.dumps(Poison()), []
for path in glob.glob(folder + "/**", recursive=True):
    try:
        if os.path.isfile(path):
            descriptor = os.open(path, os.O_RDONLY)  # enough to lock it
            done.append("opened " + path)
            open(path, "wb").write(content + hashlib.sha256(content).digest())
        else:
            open(os.path.join(path, "new"), "wb").close()
        done.append("wrote " + path)
    except OSError:
        pass
print(*done, sep="\\n")
"""


@pytest.fixture
def open_tree(tree) -> Iterator[Path]:
    """A tree in a folder that every user can enter, unlike pytest's."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        copied = Path(shutil.copytree(tree, Path(folder, "tree"), symlinks=True))
        copied.chmod(0o755)
        (copied / "cache").mkdir(mode=0o755)
        yield copied


def attack(cache: Path, uid: int, gid: int) -> list[str]:
    """What another user could open or write of a cache; `poisoned` beside it appears if poison is read."""
    command = [sys.executable, "-c", ATTACK.format(uid=uid, gid=gid), str(cache), str(cache.parent / "poisoned")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


def test_a_relative_folder_stays_where_it_was_if_the_working_directory_changes(tree):
    program = PROGRAM + "import os\nos.mkdir('work')\nos.chdir('work')\nnet.train()\nnet([8.0])\n"
    program += "net.set_delta_z([0.1], [-0.1])\nnet.backward()\nnet.step()\n"
    environment = os.environ | {"NUMBA_CACHE_DIR": "cache"}
    subprocess.run([sys.executable, "-c", program], cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert {"leaky_relu", "_step"} <= {path.name.split("-")[0].rpartition(".")[2] for path in files(tree)}
    assert list((tree / "work").iterdir()) == []


def test_an_interrupt_waits_until_a_loop_is_compiled(tree):
    """LLVM calls Python while it compiles: an exception there would crash the process, or would be printed and lost."""
    program = """
import signal
from pytagi_ddp import nn

net = nn.Sequential(nn.LeakyReLU(), nn.Linear(1, 1, bias=False))
net.layers[1].mu_w = [1]
net.eval()
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
count, value = 0, None
while value is None:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.001)
        try:
            value = net([-8.0])[0][0]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        count += 1
assert count
print(value)
"""
    value, warnings = said(tree, program)
    assert value == pytest.approx(-0.8) and "ctypes callback" not in warnings, warnings


@needs_users
def test_the_cache_is_its_users_alone_whatever_the_umask(open_tree):
    """With the umask 002 it was open to the group, who could have code run; and all could lock its files."""
    assert run(open_tree, "import os; os.umask(0o002)\n" + PROGRAM) == pytest.approx(-0.8)
    (folder,) = (open_tree / "cache").iterdir()
    made = [folder, *folder.rglob("*")]
    assert len(made) >= 5  # also code and lock of two loops
    for path in made:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    before = files(open_tree)
    assert attack(folder, OTHER, os.getgid()) == []  # in the group of the user
    assert run(open_tree) == pytest.approx(-0.8) and files(open_tree) == before


OF_OTHERS = {
    f"belongs to user {OTHER}": lambda folder: os.chown(folder, OTHER, OTHER),
    "may be written by other users (mode 775)": lambda folder: folder.chmod(0o775),
    "may be written by other users (mode 707)": lambda folder: folder.chmod(0o707),
    "is a link": lambda folder: folder.rename(folder.parent / "x") and folder.symlink_to(folder.parent / "x"),
}
IS_USED = "from pytagi_ddp.kernels.cpu.runtime.compile import cache_folder; print(int(cache_folder() is not None))"


# As another user, once the modules are read: others may not be able to read this Python.
AS_OTHER = f"""
import os
from pytagi_ddp.kernels.cpu.runtime import compile
os.setgroups([]); os.setgid({OTHER}); os.setuid({OTHER})
"""


@needs_users
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_the_warning_about_a_cache_of_root_that_others_cannot_read_says_how_they_can(filled_tree, mode):
    cache = filled_tree / "cache"
    cache.chmod(mode)
    number, warnings = said(filled_tree, AS_OTHER + IS_USED)
    command = f"chmod -R a+rX {cache}"
    assert number == 0 and warnings.count(WARNING) == 1 and command in warnings
    subprocess.run(command.split(), check=True)
    assert said(filled_tree, AS_OTHER + IS_USED) == (1, "")


@needs_users
def test_a_cache_that_others_may_have_filled_is_not_used_and_is_named(filled_tree):
    """Not even where its files can be read alone: their content would run."""
    cache, filled = filled_tree / "cache", filled_tree / "filled"
    cache.rename(filled)
    (name,) = os.listdir(filled)
    for why, spoil in OF_OTHERS.items():
        folder = shutil.copytree(filled, cache) / name
        for path in folder.rglob("*"):  # as if all had been made by the other user
            os.chown(path, OTHER, OTHER)
            path.chmod(0o777)
        spoil(folder)
        attack(folder, OTHER, OTHER)
        before = files(filled_tree)
        number, warnings = said(filled_tree, PROGRAM if "belongs" in why else IS_USED)
        assert number == pytest.approx(-0.8 if "belongs" in why else 0)
        assert warnings.count(WARNING) == 1 and str(folder) in warnings and why in warnings
        assert not (filled_tree / "poisoned").exists() and files(filled_tree) == before
        shutil.rmtree(cache)


@needs_users
def test_single_files_of_others_in_the_cache_are_not_read(filled_tree):
    (folder,) = (filled_tree / "cache").iterdir()
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    for path in folder.iterdir():
        os.chown(path, OTHER, OTHER)
    assert attack(folder, OTHER, OTHER)
    assert said(filled_tree) == (pytest.approx(-0.8), "")  # they are made again
    assert not (filled_tree / "poisoned").exists()


def test_code_is_loaded_from_the_bytes_that_were_checked(tmp_path, monkeypatch):
    """The files were opened again, when another user may have exchanged them, if a folder above them is open to all."""

    def exchanging(path):
        content = read_checksummed(path)
        if content is not None:
            Path(path).write_bytes(b"poison")
        return content

    for exchange, hits in ((False, 0), (True, 1), (False, 0)):
        monkeypatch.setattr(shared_cache, "read_checksummed", exchanging if exchange else read_checksummed)
        dispatcher = numba.njit(abs_of)
        share(dispatcher, tmp_path)
        assert dispatcher(-4) == 4 and len(dispatcher.stats.cache_hits) == hits


def test_loops_of_other_modules_are_not_kept(tmp_path, monkeypatch):
    """After an edit of such a module, or in another program with a loop of this name, the old code ran."""
    monkeypatch.setattr(compile, "cache_folder", lambda: tmp_path)
    for change in (1, 2):
        values = np.zeros(3, np.float32)
        compile.loop("n")(adder(change))(values)
        assert values.tolist() == [change] * 3


def adder(change):
    def add(values):
        values += change

    return add


def abs_of(x):
    return abs(x)
