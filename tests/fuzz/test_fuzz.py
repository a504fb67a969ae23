"""Every reader, with damaged files: a fixed number of them here, as many as one likes with `make fuzz`."""

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("resource", reason="this system has no limit of memory")
hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
from hypothesis import strategies as st  # noqa: E402

from tests.conftest import ALL_TESTS  # noqa: E402
from tests.fuzz import __main__ as command  # noqa: E402
from tests.fuzz.cases import Reader, limited_memory  # noqa: E402
from tests.fuzz.formats import FORMATS, READERS  # noqa: E402
from tests.fuzz.kept import KEPT  # noqa: E402
from tests.fuzz.mutations import CHANGES  # noqa: E402
from tests.test_imports import module_name  # noqa: E402

EXAMPLES = 60  # of each format, which hypothesis makes smaller where one fails
CASES = 500 if ALL_TESTS else 200  # of each format, without that, in a process that may crash

numbers = st.integers(0, (1 << 24) - 1)
mutations = st.lists(st.tuples(st.integers(0, len(CHANGES) - 1), numbers, numbers, numbers), min_size=1, max_size=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_any_damage(name, tmp_path):
    reader = Reader(name, tmp_path)

    @hypothesis.settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None)
    @hypothesis.given(st.integers(0, 9), st.booleans(), mutations)
    def run(which, inside, changes):
        reader.check(*reader.damaged(which, inside, changes))

    with limited_memory(reader.memory_limit()):
        run()
    assert reader.refused + reader.accepted >= EXAMPLES


@pytest.mark.parametrize("number", range(len(KEPT)))
def test_what_once_broke_something(number, tmp_path):
    name, file, content = KEPT[number]
    reader = Reader(name, tmp_path)
    with limited_memory(reader.memory_limit()):
        reader.check(file, content)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_files(tmp_path):
    program = [sys.executable, "-m", "tests.fuzz", "--here", "--cases", str(CASES), "--keep", str(tmp_path / "kept")]
    environment = os.environ | {"PYTAGI_DDP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run(program, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f": {CASES} files, ") == len(FORMATS)
    assert not (tmp_path / "kept").exists()


READS = re.compile(
    r"(read_file|read_private|fromfile|open|safe_open|open_tensors|ZipFile|read_bytes|read_text|memmap|loadtxt|genfromtxt|urlopen)"
)
NOT_FILES = ("os", "archive", "ImageShard", "self")  # of which `open` opens none that is read


def opened(node: ast.AST, name: str, path: Path) -> Iterator[str]:
    """The functions below a node that open a file or an address to read it, by their names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}" if isinstance(node, ast.ClassDef) else f"{name}{child.name}"
            yield from opened(child, inner, path)
            continue
        if isinstance(child, ast.Call):
            called = child.func.attr if isinstance(child.func, ast.Attribute) else getattr(child.func, "id", "")
            of = ast.unparse(child.func.value) if isinstance(child.func, ast.Attribute) else ""
            mode = next(
                (
                    a.value
                    for a in [*child.args[:2], *(k.value for k in child.keywords if k.arg == "mode")]
                    if isinstance(a, ast.Constant) and re.fullmatch(r"[rwxab+]{1,3}", str(a.value))
                ),
                "r",
            )
            load = of == "np" and called in ("load", "fromfile")
            if (READS.fullmatch(called) and of not in NOT_FILES and not set("wxa+") & set(str(mode))) or load:
                yield name
        yield from opened(child, name, path)


def test_every_reader_is_fuzzed():
    root = Path(__file__).parents[2]
    found = set()
    for path in sorted([*(root / "pytagi_ddp").rglob("*.py"), *(root / "kernels").rglob("*.py")]):
        if not path.is_relative_to(root / "pytagi_ddp" / "kernels"):
            found |= {f"{module_name(path)}:{name}" for name in opened(ast.parse(path.read_text()), "", path)}
    assert found == READERS.keys(), "what reads files has a row in READERS (tests/fuzz/formats.py)"
    named = {name for formats in READERS.values() if not isinstance(formats, str) for name in formats}
    assert named <= FORMATS.keys() | {"picture"}


def test_what_a_reader_must_not_do_is_noticed(tmp_path):
    """The checks themselves: an error without a name, another content, another file, too much memory."""

    def reads(do, errors=(ValueError,)):
        reader = Reader("idx", tmp_path)
        reader.format.read, reader.format.errors, reader.format.exact = do, errors, True
        with limited_memory(reader.memory_limit()):
            reader.check("images", b"damaged")

    def nameless(path):
        raise ValueError("something is wrong")

    def leaves_a_file(path):
        (path.parent / "other").write_bytes(b"")
        raise ValueError(path)

    for broken, error, message in (
        (nameless, AssertionError, "does not name the file"),
        (lambda path: 7, AssertionError, "has another content"),
        (leaves_a_file, AssertionError, None),
        (lambda path: bytes(1 << 30), MemoryError, None),
        (lambda path: {}[path], KeyError, "images"),
    ):
        with pytest.raises(error, match=message):
            reads(broken)
        (tmp_path / "other").unlink(missing_ok=True)


def test_a_process_that_ends_by_a_signal_is_an_answer(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=-signal.SIGSEGV))
    args = SimpleNamespace(cases=3, seconds=1.0, seed=0, keep=tmp_path)
    assert command.in_a_process("idx", args) == 1
    assert capsys.readouterr().out == (f"idx: ended by SIGSEGV (SIGPROF: more than 5.0 s); the file is in {tmp_path}\n")
