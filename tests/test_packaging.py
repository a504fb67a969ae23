"""The wheel, built from the sdist, works away from the source tree; the tree itself says when it is not built.

And what belongs to a release agrees: the version, the Pythons, the workflows, the public API.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import pytagi_ddp
from tests import arm64, interpreters, public_api, release
from tests.clean_tree import ROOT, SHARED, hasty, source_tree
from tests.conftest import weekly

STEP = (
    """
import sys
import pytagi_ddp.nn
heavy = {"mpi4py.MPI", "cupy", "numba.cuda", "matplotlib", "sklearn"} & set(sys.modules)
assert not heavy, heavy
"""
    + interpreters.STEP
)

CODE = (ROOT / "kernels", ROOT / "pytagi_ddp")
# Compiles every module in memory, a warning is an error; prints where the headers of this Python are.
READS_ALL = """
import json, pathlib, sys, sysconfig, warnings
warnings.simplefilter("error")
for folder in sys.argv[1:]:
    for path in pathlib.Path(folder).rglob("*.py"):
        compile(path.read_text(), str(path), "exec")
print(json.dumps(sysconfig.get_paths()))
"""


def run(*command, cwd: Path, **env) -> subprocess.CompletedProcess:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(command, cwd=cwd, env=clean | env, capture_output=True, text=True, check=False)


@weekly  # the release builds wheels, too, and tests each
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_from_sdist_works_elsewhere(tmp_path, processes):
    for module in ("build", "Cython", "setuptools"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs the package {module}")
    tree, dist, site = source_tree(tmp_path / "tree"), tmp_path / "dist", tmp_path / "site"
    options = tmp_path / "options.cfg"
    options.write_text(f"[build_ext]\nparallel = {processes}\n")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist))
    compiler = shutil.which("gcc")
    haste = {"CC": hasty(compiler, tmp_path)} if compiler else {}
    built = run(*build, cwd=tree, DIST_EXTRA_CONFIG=str(options), **haste)
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


# Collects the tests where some packages are not installed.
COLLECT = """
import functools, importlib.machinery, sys, pytest
def find(found, name, *rest):
    return None if name.partition(".")[0] in {"hypothesis", "sklearn", "yaml"} else found(name, *rest)
finder = importlib.machinery.PathFinder
finder.find_spec = functools.partial(find, finder.find_spec)
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "tests"]))
"""


@weekly
@pytest.mark.slow
def test_tests_are_collected_without_packages_that_only_some_need():
    done = run(sys.executable, "-c", COLLECT, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:]


LITTLE = (
    """
import os, resource, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
import pytagi_ddp
assert not {"numba", "scipy"} & set(sys.modules), "the import is to be quick"
"""
    + STEP
    + """
net.save("network")
other = Sequential(Conv2d(1, 2, 3, in_width=6, in_height=6), ReLU(), Linear(32, 1))
other.load("network")
np.testing.assert_array_equal(other.predict(np.ones(36))[0], net.predict(np.ones(36))[0])
"""
)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_one_core_a_gigabyte_no_home_and_an_odd_locale_are_enough(tmp_path):
    environment = {"PYTHONPATH": str(ROOT), "TZ": "Pacific/Chatham", "LC_ALL": "tr_TR.ISO-8859-9", "LANG": "xx"}
    environment |= {name: os.environ[name] for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME") if name in os.environ}
    command = (sys.executable, "-c", LITTLE)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def c_sources(tmp_path_factory) -> Path:
    """A source tree in which the C code of every module is there already."""
    for module in ("Cython", "setuptools"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs the package {module}")
    tree = source_tree(tmp_path_factory.mktemp("sources"))
    made = run(sys.executable, "setup.py", "--quiet", "egg_info", cwd=tree)  # Cython comes before any command
    assert made.returncode == 0, made.stderr
    return tree


CHECK = (
    STEP
    + """
import warnings
from pytagi_ddp.kernels.cpu.layers.elementwise import multiply
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads
net = Sequential(Linear(300, 200), ReLU(), Conv2d(8, 4, 3, in_width=5, in_height=5))
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    net.set_threads(2)
x = np.linspace(-1, 1, 64 * 300, dtype=np.float32).reshape(64, 300)
net.eval()
mean = net(x)[0]
w, b = net.layers[0].mu_w.reshape(200, 300), net.layers[0].mu_b
a = np.maximum(x @ w.T + b, 0).reshape(64, 8, 5, 5)
k = net.layers[2].mu_w.reshape(4, 8, 3, 3)
windows = np.lib.stride_tricks.sliding_window_view(a, (3, 3), axis=(2, 3))
expected = np.einsum("bchwij,ocij->bohw", windows, k) + net.layers[2].mu_b.reshape(4, 1, 1)
np.testing.assert_allclose(mean.ravel(), expected.ravel(), rtol=1e-4, atol=1e-4)
small = np.full(100_000, 1e-30, np.float32)
multiply(small, np.full(100_000, 1e-12, np.float32))
assert not small.any(), "kernels have to take subnormal numbers for zero, in each thread"
print(get_threads(), *(f"{warning.message}" for warning in seen))
"""
)
WITHOUT_OPENMP = "1 1 thread instead of 2: pytagi_ddp was compiled without OpenMP; for more, install OpenMP"


@weekly
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "hidden"), [("gcc", True), ("clang", True), ("clang", False)])
def test_builds_with(name, hidden, c_sources, tmp_path, processes):
    """Without OpenMP, neither header nor library; clang also with what it has of it (gcc with it: the wheel above)."""
    compiler = shutil.which(name)
    if compiler is None:
        pytest.skip(f"{name} is not installed")
    compiler = hasty(compiler, tmp_path, *(["-fopenmp"] if hidden else []))
    probe = (compiler, "-fopenmp", "-x", "c", "-", "-o", str(tmp_path / "probe"))
    program = b"#include <omp.h>\nint main(void) { return !omp_get_max_threads(); }"
    openmp = subprocess.run(probe, input=program, capture_output=True, check=False).returncode == 0
    assert not (openmp and hidden)
    library = tmp_path / "library"
    folders = ["--build-base", str(tmp_path / "build"), "--build-lib", str(library)]
    command = [sys.executable, "setup.py", "--quiet", "build", *folders, "--parallel", str(processes)]
    built = run(*command, cwd=c_sources, CC=compiler, CFLAGS="-Werror=unused-function")
    assert built.returncode == 0, built.stderr[-3000:]
    assert ("has no OpenMP" in built.stderr) is not openmp
    result = run(sys.executable, "-c", CHECK, cwd=tmp_path, PYTHONPATH=str(library))
    assert result.returncode == 0, result.stderr
    place, threads = result.stdout.splitlines()
    assert place == str(library / "pytagi_ddp/__init__.py")
    assert threads == "2" if openmp else threads.startswith(WITHOUT_OPENMP)
    if not openmp:
        report = run(sys.executable, "-m", "pytagi_ddp.doctor", cwd=tmp_path, PYTHONPATH=str(library))
        assert report.returncode == 0 and "built without OpenMP: one thread" in report.stdout, report.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "there"), [("gcc", False), ("clang", True)])
def test_openmp_of_a_compiler_that_has_it_only_as_an_option_of_its_preprocessor(name, there, tmp_path):
    """As Apple's clang has it. gcc takes this option, too, and gives no threads for it."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    library = Path(run(name, "-print-resource-dir", cwd=tmp_path).stdout.strip()).parents[1] if there else tmp_path
    if there and not (library / "libomp.so").exists():
        pytest.skip("clang has no libomp")
    compiler = tmp_path / "cc"
    refusal = '[ "$word" = -fopenmp ] && [ "$before" != -Xpreprocessor ] && exit 1'
    compiler.write_text(f'#!/bin/sh\nfor word; do {refusal}; before=$word; done\nexec {name} "$@"\n')
    compiler.chmod(0o755)
    environment = {"CC": str(compiler), "LIBRARY_PATH": str(library)}
    asked = run(sys.executable, "setup.py", "--quiet", "build_ext", "--help", cwd=ROOT, **environment)
    assert asked.returncode == 0, asked.stderr
    assert ("has no OpenMP" in asked.stderr) is not there


@pytest.mark.slow
@pytest.mark.parametrize("target", ["arm64", "the newest Python"])
def test_every_module_compiles(tmp_path, target):
    """As far as a compiler can say; tests/arm64.py and tests/interpreters.py run it there."""
    paths = sysconfig.get_paths()
    compiler = shutil.which("aarch64-linux-gnu-gcc" if target == "arm64" else "gcc")
    if compiler is None:
        pytest.skip("needs aarch64-linux-gnu-gcc (Debian: apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross)")
    if target != "arm64":
        if (newest := interpreters.newest()) is None:
            pytest.skip("there is no newer Python than the one that runs the tests")
        paths = json.loads(run(newest, "-c", READS_ALL, *map(str, CODE), cwd=tmp_path).stdout)
    sources = [str(path.with_suffix(".c")) for folder in CODE for path in folder.rglob("*.pyx")]
    assert len(sources) > 15
    sources.append(str(ROOT / SHARED))
    parts = [f"-I{ROOT / 'kernels/cpu' / part}" for part in ("products", "runtime", "layers")]
    headers = [f"-I{paths[kind]}" for kind in ("include", "platinclude")]
    options = ["-fsyntax-only", "-fopenmp", "-w", *parts, *headers, f"-I{np.get_include()}"]
    done = run(compiler, *options, *sources, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_formats_of_numbers_are_right(compiler, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    header = ROOT / "kernels/cpu/runtime/contention.h"
    done = run(compiler, "-fsyntax-only", "-Wformat", "-Werror=format", "-x", "c", str(header), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_steps_on_arm64_name_tests_that_are_there():
    named = re.findall(r"tests/\S+\.py", " ".join(arm64.STEPS.values()))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).is_file()] == []


# Runs a command of setup.py, without C code of modules.
SETUP = """
import runpy, sys, Cython.Build
Cython.Build.cythonize = lambda modules, **options: modules
sys.argv[0] = "setup.py"
made = runpy.run_path("setup.py")
"""


# Prints how many files are compiled at once.
AT_ONCE = f"""
{SETUP}
from setuptools import Distribution
command = made["BuildKernels"](Distribution())
command.finalize_options()
print(command.parallel)
"""


@pytest.mark.parametrize(
    ("mine", "environment", "expected"),
    [
        (3, {}, 3),
        (3, {"CPU_COUNT": "2"}, 2),
        (3, {"CPU_COUNT": "8"}, 3),
        (3, {"CPU_COUNT": "", "MAKEFLAGS": " -j2 --jobserver-auth=3,4"}, 2),
        (6, {"CPU_COUNT": "5", "MAKEFLAGS": "-k -j 4"}, 4),
        (3, {"CPU_COUNT": "all", "MAKEFLAGS": "-j --jobs"}, 3),
        (None, {}, 64),
    ],
)
def test_a_build_takes_no_more_cores_than_it_may(mine, environment, expected):
    """mine: cores that this process may use; None where the system cannot tell."""
    affinity = f"os.sched_getaffinity = lambda process: range({mine})" if mine else "del os.sched_getaffinity"
    program = f"import os; os.cpu_count = lambda: 64; {affinity}\n{AT_ONCE}"
    done = run(sys.executable, "-c", program, "--name", cwd=ROOT, **{"CPU_COUNT": "", "MAKEFLAGS": ""} | environment)
    assert done.stdout.split()[-1] == str(expected), done.stderr


@pytest.mark.slow
def test_an_sdist_has_the_kernels_once_and_a_patch_of_them_is_built(tmp_path):
    tree, site = source_tree(tmp_path / "tree"), tmp_path / "site"
    made = run(sys.executable, "-c", SETUP, "sdist", "--dist-dir", str(tmp_path), cwd=tree)
    assert made.returncode == 0, made.stderr
    (sdist,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert not (unpacked / "pytagi_ddp" / "kernels").exists()
    (unpacked / "kernels" / "protocol.py").write_text("patched = True\n")
    built = run(sys.executable, "-c", SETUP, "build_py", "--build-lib", str(site), cwd=unpacked)
    assert built.returncode == 0, built.stderr
    assert (site / "pytagi_ddp" / "kernels" / "protocol.py").read_text() == "patched = True\n"
    kinds = ("*.py", "*.pyx", "*.pxd", "*.h")
    expected = {path.relative_to(tree) for kind in kinds for path in (tree / "kernels").rglob(kind)}
    assert {path.relative_to(site / "pytagi_ddp") for path in (site / "pytagi_ddp/kernels").rglob("*.*")} == expected


def test_windows_is_refused_with_the_reason():
    program = """
import runpy, sys, numpy, setuptools.command.build_ext, Cython.Build
sys.platform, sys.argv = "win32", ["setup.py", "bdist_wheel"]
runpy.run_path("setup.py")
"""
    done = run(sys.executable, "-c", program, cwd=ROOT)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("pytagi_ddp does not work on Windows: ") and "wsl --install" in done.stderr


@pytest.mark.parametrize(("flags", "asks"), [("", False), ("-O2 -fdebug-types-section", False), ("-O1 -g", True)])
def test_debug_information_is_there_if_cflags_ask_for_it(flags, asks):
    program = """
import runpy, sys, setuptools, setuptools.command.build_ext, Cython.Build
sys.argv, Cython.Build.cythonize = ["setup.py", "egg_info"], lambda modules, **options: modules
setuptools.setup = lambda ext_modules, **options: print({"-g0" in made.extra_compile_args for made in ext_modules})
runpy.run_path("setup.py")
"""
    done = run(sys.executable, "-c", program, cwd=ROOT, CFLAGS=flags, PYTAGI_DDP_SANITIZE="0")
    assert done.stdout == f"{ {not asks} }\n", done.stderr


@pytest.mark.parametrize(
    ("compiler", "what"),
    [
        ("/no/such/gcc", "there is no C compiler that works (/no/such/gcc was tried): install one"),
        ("false", "there is no C compiler that works (false was tried): install one"),
        ("{folder}/without_headers", "the C headers of Python"),
    ],
)
def test_the_first_line_says_what_to_install(tmp_path, compiler, what):
    script = tmp_path / "without_headers"
    script.write_text("#!/bin/sh\n! grep -q Python.h\n")
    script.chmod(0o755)
    command = (sys.executable, "setup.py", "bdist_wheel")
    done = run(*command, cwd=ROOT, CC=compiler.format(folder=tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"pytagi_ddp cannot be compiled: {what}") and "apt install" in done.stderr
    assert done.stdout == "" and done.stderr.count("\n") == 1


def test_unbuilt_tree_names_the_build_command(tmp_path):
    tree = source_tree(tmp_path)
    result = run(sys.executable, "-c", STEP, cwd=tree, PYTHONPATH=str(tree))
    assert result.returncode != 0
    assert "ImportError" in result.stderr and "pip install -e ." in result.stderr


def declared(pattern: str) -> list[str]:
    """What pyproject.toml says; Python 3.10 has no reader of TOML."""
    return re.findall(pattern, (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


VERSION = declared(r'^version = "(.+)"')[0]
PYTHONS = declared(r'"Programming Language :: Python :: (3\.\d+)"')


def versions(tree: Path) -> set[str]:
    """What the files of a source tree say."""
    released = r"^## (\d\S+) - \d{4}-\d\d-\d\d$"
    places = release.VERSION_IN | {release.CHANGELOG: released}
    return {re.search(pattern, (tree / name).read_text(), re.MULTILINE)[1] for name, pattern in places.items()}


def test_a_release_fills_in_what_it_is(tmp_path):
    tree = source_tree(tmp_path)
    release.fill(tree, "9.8.7", "2099-01-31", "https://example.org/a")
    assert versions(tree) == {"9.8.7"}
    project = (tree / "pyproject.toml").read_text()
    urls = 'Repository = "https://example.org/a"\nIssues = "https://example.org/a/issues"\n'
    assert f"\n\n[project.urls]\n{urls}\n[" in project
    with pytest.raises(ValueError, match=r"CHANGELOG\.md: nothing is unreleased, or 9\.8\.8"):
        release.fill(tree, "9.8.8", "2099-02-01")
    (tree / "CHANGELOG.md").write_text("## Unreleased\n\n* news\n")
    release.fill(tree, "9.8.8", "2099-02-01", "https://example.org/b")
    assert versions(tree) == {"9.8.8"}
    assert (tree / "pyproject.toml").read_text() == project.replace("9.8.7", "9.8.8").replace(".org/a", ".org/b")


def test_version_is_that_of_pyproject():
    assert versions(ROOT) == {VERSION}
    assert "release = pytagi_ddp.__version__" in (ROOT / "docs/conf.py").read_text()
    metadata = run(sys.executable, "-c", "import pytagi_ddp; print(pytagi_ddp.__version__)", cwd=ROOT)
    assert metadata.stdout.strip() == pytagi_ddp.__version__ == VERSION, "run pip install -e . again"


def test_changelog_is_in_the_form_of_keep_a_changelog():
    heads = re.findall(r"^(##+) (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == ("##", "Unreleased")
    kinds = [text for marks, text in heads if marks == "###"]
    assert kinds and {*kinds} <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_recipe_asks_for_what_pyproject_asks_for():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    recipe = yaml.safe_load((ROOT / "packaging/recipe.yaml").read_text())
    block = re.search(r"^dependencies = \[(.+?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)[1]
    wanted = {f"python >={PYTHONS[0]}", *(name.replace(">=", " >=") for name in re.findall(r'"(.+?)"', block))}
    assert set(recipe["requirements"]["run"]) == wanted
    to_build = {name.replace(">=", " >=") for name in re.findall(r'"(.+?)"', declared(r"^requires = \[(.+)\]")[0])}
    assert to_build < set(recipe["requirements"]["host"])


@pytest.mark.parametrize(
    ("name", "works"),
    [
        ("cython", (3, 2)),  # earlier ones cannot put what modules share into one of them
        ("matplotlib", (3, 8, 4)),  # earlier ones need numpy<2
    ],
)
def test_versions_that_do_not_work_are_not_asked_for(name, works):
    files = ("pyproject.toml", "packaging/recipe.yaml", "tests/arm64.py")
    asked = re.findall(rf"\b{name} ?>=([\d.]+)", "".join((ROOT / file).read_text() for file in files))
    assert len(asked) > 1 and {tuple(map(int, version.split("."))) for version in asked} == {works}


def workflows() -> dict[str, dict]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}


def test_workflows_are_valid_and_name_the_declared_pythons():
    found = workflows()
    assert {"ci.yml", "faults.yml", "release.yml"} <= found.keys()
    assert found["ci.yml"]["jobs"]["test"]["strategy"]["matrix"]["python"] == PYTHONS
    assert declared(r'^build = "(.+)"') == [" ".join(f"cp{python.replace('.', '')}-*" for python in PYTHONS)]
    assert declared(r'^requires-python = ">=(.+)"') == PYTHONS[:1]


def test_workflows_may_do_little_and_pin_what_they_use():
    for name, workflow in workflows().items():
        assert workflow["permissions"] == {"contents": "read"}, name
        for job in workflow["jobs"].values():
            assert job["timeout-minutes"] <= 180
            assert set(job.get("permissions", ())) <= {"id-token"}
            for step in job["steps"]:
                assert ("run" in step) != ("uses" in step)
                assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step
                if step.get("uses", "").startswith("actions/checkout@"):
                    assert step["with"]["persist-credentials"] is False


def test_nothing_public_is_gone_since_the_last_release():
    broken, _ = public_api.compare(public_api.recorded(), public_api.public_api())
    assert broken == []


def test_the_comparison_of_public_names_notices():
    def f(x, y=1, *, z=2): ...

    def longer(x, y=1, w=3, *, v=4, z=2): ...

    def other(x, y=2, *, z=2): ...

    def settled_later(x, y=None, *, z=None): ...

    def needs(x, y=1, *, z=2, v): ...

    def shorter(x, *, z=2): ...

    signature = {g.__name__: public_api.described(g) for g in (f, longer, settled_later, other, needs, shorter)}
    assert signature["f"] == ["x", "y=1", "z=2 (by name)"]
    before = dict.fromkeys(signature, signature["f"]) | {"gone": "value"}
    broken, new = public_api.compare(before, signature | {"added": "class"})
    assert sorted(line.split("(")[0].split() for line in broken) == [
        ["changed", "needs"],
        ["changed", "other"],
        ["changed", "shorter"],
        ["gone", "gone:", "value"],
    ]
    assert [line.split()[0] for line in new] == ["new", "extended", "extended"]

    base = {"nn.Base": "class of", "nn.Base.size": "value", "nn.Own": "class of Base"}
    assert public_api.compare({"nn.Own.size": "value"}, base)[0] == [], "left to its base"
    assert public_api.compare({"nn.Own.width": "value"}, base)[0] == ["gone      nn.Own.width: value"]
