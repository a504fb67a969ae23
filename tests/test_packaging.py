"""The wheel, built from the sdist, works away from the source tree; the tree itself says when it is not built."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STEP = """
import sys
import numpy as np
import pytagi_ddp
from pytagi_ddp.nn import Conv2d, Linear, OutputUpdater, ReLU, Sequential
heavy = {"mpi4py.MPI", "cupy", "numba.cuda", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
net = Sequential(Conv2d(1, 2, 3, in_width=6, in_height=6), ReLU(), Linear(32, 1))
net(np.ones(36))
OutputUpdater(net.device).update(net.output_z_buffer, [1.0], [1.0], net.input_delta_z_buffer)
net.backward()
net.step()
print(pytagi_ddp.__file__)
"""


def source_tree(folder: Path) -> Path:
    """A copy of what is under version control, as a clone would have it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout: the list of source files is unknown")
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


def run(*command, cwd: Path, **env) -> subprocess.CompletedProcess:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(command, cwd=cwd, env=clean | env, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_from_sdist_works_elsewhere(tmp_path):
    for module in ("build", "Cython", "setuptools"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs the package {module}")
    tree, dist, site = source_tree(tmp_path / "tree"), tmp_path / "dist", tmp_path / "site"
    options = tmp_path / "options.cfg"
    options.write_text("[build_ext]\nparallel = 2\n")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist))
    built = run(*build, cwd=tree, DIST_EXTRA_CONFIG=str(options))
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
    (wheel,) = dist.glob("*.whl")
    assert len(list(dist.glob("*.tar.gz"))) == 1
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel))
    installed = run(*pip, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    assert sorted(path.name for path in site.iterdir() if not path.name.endswith(".dist-info")) == ["pytagi_ddp"]
    assert (site / "pytagi_ddp/py.typed").exists()
    result = run(sys.executable, "-c", STEP, cwd=tmp_path, PYTHONPATH=str(site))
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()).parents[1] == site


def test_unbuilt_tree_names_the_build_command(tmp_path):
    tree = source_tree(tmp_path)
    result = run(sys.executable, "-c", STEP, cwd=tree, PYTHONPATH=str(tree))
    assert result.returncode != 0
    assert "ImportError" in result.stderr and "pip install -e ." in result.stderr


def test_nothing_imports_bare_kernels():
    pattern = re.compile(r"^\s*(from|import) kernels\b", re.MULTILINE)
    sources = [
        path
        for folder in ("pytagi_ddp", "kernels", "tests", "examples", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(sources) > 50
    assert [str(path) for path in sources if pattern.search(path.read_text())] == []
