"""The documentation: its code runs, it has all that is public, and it builds without a warning."""

import ast
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import subprocess
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ALL_TESTS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODULES = (
    *("nn", "distributed", "data", "checkpoint", "metric", "models", "cuda", "tagi_utils", "plot", "arrays"),
    "estimators",
    "forecasting",
    "likelihoods",
    "onnx",
    "training",
)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_imported_as_pytagi_afterwards():
    """docs/api names `as_pytagi`: once it is imported, networks take any attribute, and later tests would see that."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "pytagi"]:
        del sys.modules[name]


# What pages take for granted that show a part of a program: a network, data, and how it learns.
SMALL = """
import numpy as np
from pytagi_ddp import nn
from pytagi_ddp.nn import DDPSequential, Linear, OutputUpdater, ReLU, Sequential
rng = np.random.default_rng(0)
data = rng.normal(size=(64, 3))
net = Sequential(Linear(3, 4), ReLU(), Linear(4, 1))
updater = OutputUpdater(net.device)
var_y = 0.01
def learn(net, x, y):
    net(x)
    updater.update(net.output_z_buffer, y, var_y, net.input_delta_z_buffer)
    net.backward()
"""
BEFORE = {
    "batch_norm.md": """
from pytagi_ddp.nn import BatchNorm2d
net = Sequential(Linear(3, 4), BatchNorm2d(4), Linear(4, 1))
train_loader = [data] * 40
batches, x_test = [(data, np.zeros(len(data)))] * 3, data
""",
    "checkpoints.md": """
from pytagi_ddp.data import BatchLoader, synthetic_images
batch_size, sigma_v, seed, epochs = 16, 0.1, 0, 2
train, _ = synthetic_images(48, 10)
loader = BatchLoader(train, batch_size, seed=seed)
net = DDPSequential(Sequential(Linear(train.images[0].size, 1)))
def train_on(x, labels):
    learn(net, x, np.zeros(len(labels)))
    net.step()
""",
    "distributed.md": """
total, count = 3.0, 4
def batches(share):
    yield np.array([share[k] for k in range(8)]), np.zeros(8)
""",
    "sequences.md": "net = nn.Sequential(nn.LSTM(1, 40), nn.Linear(40, 1))",
}


def pages() -> list[Path]:
    """What is written by hand, and has code."""
    built = {DOCS / "_build", DOCS / "gallery", DOCS / "api"}
    return [path for path in sorted(DOCS.rglob("*.md")) if not built & set(path.parents) and BLOCK.search(_text(path))]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def run_pages() -> int:
    """Runs the blocks of each page one after the other, each page by itself; returns how many pages failed."""
    failed = 0
    for path in pages():
        name, namespace = path.relative_to(DOCS).as_posix(), {"__name__": path.stem}
        try:
            if name in BEFORE:
                exec(SMALL + BEFORE[name], namespace)
            for block in BLOCK.finditer(_text(path)):
                line = _text(path)[: block.start(1)].count("\n")
                exec(compile("\n" * line + block[1], str(path), "exec"), namespace)  # with the page's line numbers
        except Exception:
            failed += 1
            traceback.print_exc()
    return failed


@pytest.mark.slow
def test_the_code_runs(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert len(pages()) >= 15 and set(BEFORE) <= {page.name for page in pages()}
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tests.test_docs as t; sys.exit(t.run_pages())"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def documented() -> set[int]:
    """The objects that have an entry in docs/api, by id."""
    found = set()
    for path in (DOCS / "api").glob("*.rst"):
        module = None
        for line in path.read_text().splitlines():
            if of := re.match(r"\.\. (?:currentmodule|automodule):: ([\w.]+)", line):
                module = importlib.import_module(of[1])
            elif entry := re.match(r"(?:   |\.\. autofunction:: )(\w+)$", line):
                found.add(id(getattr(module, entry[1], None)))
    return found


@pytest.mark.parametrize("name", MODULES)
def test_all_that_is_public_has_an_entry(name):
    module = importlib.import_module(f"pytagi_ddp.{name}")
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [key for key in own if not key.startswith("_")])
    assert set(names) <= set(dir(module))
    entries = documented()
    missing = [key for key in names if id(getattr(module, key)) not in entries]
    assert not missing, f"add {', '.join(missing)} of pytagi_ddp.{name} to a page of docs/api"


def test_public_modules_are_attributes_of_the_package():
    program = f"import pytagi_ddp as p; print([n for n in {MODULES} if n not in dir(p) or not hasattr(p, n)], dir(p))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert found.stdout.startswith("[]") and "import_module" not in found.stdout


def groups() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("groups", DOCS / "groups.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_member_of_a_network_is_in_one_group_of_its_page():
    table, shown = groups(), set()
    for network in table.NETWORKS:
        names = [name for entries in table.groups_of(network).values() for _, name in entries]
        functions = {name for name, _ in inspect.getmembers(network, inspect.isfunction) if name[0] != "_"}
        assert {name for name in functions if getattr(network, name).__doc__} <= set(names)
        assert names[:4] == ["forward", "backward", "step", "predict"]
        shown |= set(names)
    assert shown == {name for names in table.GROUPS.values() for name in names}


def test_a_member_without_a_group_is_named():
    class Network:
        def forward(self):
            """In a group."""

        def new(self):
            """In none."""

    with pytest.raises(ValueError, match=r"Network has to be in one group of docs/groups.py: \['new'\]"):
        groups().groups_of(Network)


def test_every_formula_has_an_entry():
    folder, entries, number = ROOT / "kernels/formulas", documented(), 0
    for path in folder.glob("*.py"):
        module = importlib.import_module(f"pytagi_ddp.kernels.formulas.{path.stem}")
        for name in re.findall(r"^@formula\ndef (\w+)", path.read_text(), re.MULTILINE):
            assert id(getattr(module, name)) in entries, f"add {name} of {path.name} to docs/api/formulas.rst"
            number += 1
    assert number > 40


LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]*)(?:#([^)\s]+))?\)|\]\(#([^)\s]+)\)")


def anchors(path: Path) -> set[str]:
    """What links to headings of a page are called, as GitHub and MyST make them; GitHub shows no included file."""
    text = re.sub(r"^```.*?^```", "", _text(path), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#{1,3} (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(path: Path) -> list[tuple[Path, str]]:
    """(file, anchor) of each link of a page to another file, or to a heading."""
    text = re.sub(r"^```.*?^```", "", _text(path), flags=re.MULTILINE | re.DOTALL)
    found = [link.groups(default="") for link in LINK.finditer(text)]
    return [(path.parent / file if file else path, anchor or own) for file, anchor, own in found]


def test_links_lead_somewhere_when_pages_are_read_as_files():
    """Pages of the gallery are made of programs, and some pages include a file: links name the program and the file."""
    made, number = {DOCS / "_build", DOCS / "gallery"}, 0
    for path in DOCS.rglob("*.md"):
        if made & set(path.parents):
            continue
        for file, anchor in links(path):
            number += 1
            target = file.resolve()
            assert target.exists() and target.parent != DOCS / "gallery", f"{path.relative_to(ROOT)}: {file}"
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target), f"{path.relative_to(ROOT)}: {file.name}#{anchor}"
    assert number > 200


def test_a_page_names_all_environment_variables_of_the_library():
    page = _text(DOCS / "guide/batch_systems.md")
    sources = [path for folder in ("pytagi_ddp", "kernels") for path in (ROOT / folder).rglob("*.py")]
    read = {name for path in sources for name in re.findall(r"\bPYTAGI_[A-Z_]*[A-Z]\b", _text(path))}
    read |= {name for path in sources for name in re.findall(r"environ(?:\.get\(|\[)\"(\w+)\"", _text(path))}
    assert {"PYTAGI_DDP_TIMEOUT", "PYTAGI_DATA", "NUMBA_CACHE_DIR", "GOMP_SPINCOUNT"} <= read
    assert {name for name in read if f"`{name}`" not in page} == set()


def errors_of_mistakes() -> list[str]:
    """The errors of common mistakes, as Python prints them."""
    from pytagi_ddp import nn

    def mistake(calls: Callable[[nn.Sequential, nn.OutputUpdater], object], outputs: int = 1) -> str:
        net = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, outputs))
        with pytest.raises(Exception) as error:
            calls(net, nn.OutputUpdater(net.device))
        return f"{error.type.__name__}: {error.value}"

    def observe(net: nn.Sequential, updater: nn.OutputUpdater, x: np.ndarray, *calls: str) -> None:
        net(x)
        updater.update(net.output_z_buffer, np.zeros(16), 0.01, net.input_delta_z_buffer)
        for call in calls:
            getattr(net, call)()

    x = np.ones((16, 1))
    return [
        mistake(lambda net, updater: observe(net, updater, x, "step")),
        mistake(lambda net, updater: [net(x), net.backward()]),
        mistake(lambda net, updater: observe(net.eval(), updater, x, "backward")),
        mistake(lambda net, updater: net(np.nan * x)),
        mistake(lambda net, updater: observe(net, updater, 1e30 * x, "backward", "step")),
        mistake(lambda net, updater: observe(net, updater, x), outputs=3),
        mistake(lambda net, updater: setattr(net, "learning_rate", 0.1)),
    ]


def test_the_page_of_questions_quotes_errors_as_they_are():
    quoted = re.findall(r"^\| `(\w+Error: [^`]+)` \|", _text(DOCS / "guide/faq.md"), re.MULTILINE)
    raised = errors_of_mistakes()
    assert len(quoted) == len(raised)
    for text, error in zip(quoted, raised, strict=True):
        assert re.match(re.escape(text).replace(r"\.\.\.", ".*"), error), error


def test_the_page_of_questions_quotes_the_results_of_its_program():
    page = _text(DOCS / "guide/faq.md")
    program: dict[str, Any] = {}
    exec(BLOCK.search(page).group(1), program)
    rows = re.findall(r"^\| `(learn\(.*?\))`.*? \| ([\d.]+) \| (\d+) % \|", page, re.MULTILINE)
    assert len(rows) == 12
    for call, error, inside in rows:
        found = eval(call, program)
        assert found == (pytest.approx(float(error), rel=0.3, abs=0.01), pytest.approx(float(inside) / 100, abs=0.2)), (
            call
        )


# Words that only the authors of this library used, and those of its field.
TERMS = {
    r"\b(?:pass|way) back\b": "backward pass",
    r"(?<![`.\w/])arena(?![\w`:])": "flat parameter buffer",
    r"\brehouse": "change storage",
    r"\boffspring\b": "child process",
    r"\bcrowd": "CPU contention",
    r"\b(?:crew|tally)\b": "pool, counts",
    r"\bsealed\b": "checksummed",
    r"\bfor ever\b": "forever",
    r"(?<![tT]here )\b(?:is|are) no (?!longer|more|less|such|one\b)[a-z]": "is not a",
    r"\bstand-ins?\b": "emulated",
    r"\bthrows? (?:most of )?(?:it|evidence) away": "discards",
    r"\bpays? off\b|\bbegin to pay\b": "saves time",
    r"\bthe (?:words|verbs) of (?:Lux|FluxMPI)": "the names of",
    r"\bwhat wraps\b": "a wrapper",
    r"\b(?:and|or|by) its like\b": "the names of the others",
    r"\bgo(?:es|ing)? on\b": "continue",
    r"\bby and by\b": "one after the other",
    r"\b(?:is|are) told\b": "gets",
    r"\bhad better\b": "should",
    r"\bstays? as (?:it is|they are)\b": "does not change",
    r"\bbeside\b": "next to, compared with",
    r"\bso (?:many|few)\b(?! that)": "this number of",
    r"\bholds? \d+ %": "contains",
    r"\btoo (?:modest|sure of)\b": "underconfident, overconfident",
    r"\bin view\b": "after seeing",
    r"\bstands? (?:in|under|behind|among|for)\b": "is in, means",
    r"\bbut for\b": "except for",
    r"\bwhatever\b": "any, for any",
    r"\bhowever (?:many|few|large|long|small)\b": "any number of, any size of",
    r"\bcomes? and goe?s?\b": "join and leave",
    r"\bunder way\b": "in progress",
    r"\bon (?:its|their) way\b": "in transit",
    r"\bby turns\b": "in turn, alternately",
    r"\bin vain\b": "without effect",
    r"\bin(?: the)? place of\b|\btakes? the place\b": "instead of, replaces",
    r"\blies? (?:in|within|beyond|behind|together|between|next)\b": "is in",
    r"\bhands? (?:over|out|on|back)\b": "passes, returns",
    r"\bgains? nothing\b": "does not improve",
    r"\bknows? nothing\b": "is independent of, does not have",
    r"\b[Ww]hoever\b": "anyone who",
    r"\bto the last bit\b": "bit for bit",
    r"\bcopes?\b": "works",
    r"\bshall\b": "should, must",
    r"\bbelieve[sd]?\b": "trusts",
    r"\bwithout a word\b": "silently",
    r"\b(?:kept|told|held) apart\b": "separate, distinguished",
    r"\bat hand\b|\bin one go\b|\bone another\b": "available, at once, each other",
    r"\bmeets? (?:deltas|a|the)\b": "gets",
    r"\bsp(?:ares|ared)\b": "saves, avoids",
    r"\bmend(?:s|ed)?\b": "repairs, corrects",
    r"\bwalks?\b": "traverses",
}


def house_words(text: str) -> list[str]:
    """What a text says in words of its own, and what to say."""
    text = " ".join(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).split())
    said = [(found[0], term) for word, term in TERMS.items() for found in re.finditer(word, text)]
    return [f"{word!r}: write {term!r}" for word, term in said]


PUBLIC_MODULES = ("nn", "distributed", "data", "checkpoint", "likelihoods", "models", "training")
PUBLIC_MODULES += ("estimators", "forecasting") if importlib.util.find_spec("sklearn") else ()


def public_docstrings() -> dict[str, str]:
    """The docstrings of public names and of their public members, by name."""
    found = {}
    for module in PUBLIC_MODULES:
        namespace = importlib.import_module(f"pytagi_ddp.{module}")
        for name in namespace.__all__:
            thing = getattr(namespace, name)
            found[f"{module}.{name}"] = inspect.getdoc(thing) or "" if callable(thing) else ""
            for member, value in vars(thing).items() if inspect.isclass(thing) else ():
                if member[0] != "_" and (inspect.isroutine(value) or isinstance(value, property)):
                    found[f"{module}.{name}.{member}"] = value.__doc__ or ""
    return found


def test_words_are_those_of_the_field():
    made = {DOCS / "_build", DOCS / "gallery"}
    texts = {str(path.relative_to(ROOT)): _text(path) for path in DOCS.rglob("*.md") if not made & set(path.parents)}
    beyond = ["README.md", "SECURITY.md", "CONTRIBUTING.md", "benchmarks/README.md", "benchmarks/quality/README.md"]
    texts |= {name: _text(ROOT / name) for name in [*beyond, "benchmarks/NOTES.md"]} | public_docstrings()
    assert len(texts) > 300
    assert {name: words for name, text in texts.items() if (words := house_words(text))} == {}


def test_names_in_pages_are_there():
    """What a page calls `pytagi_ddp.x` is there."""
    for path in pages():
        for name in set(re.findall(r"\bpytagi_ddp(?:\.[a-z_]\w*)+", _text(path))):
            thing: object = importlib.import_module("pytagi_ddp")
            for part in name.split(".")[1:]:
                if isinstance(thing, types.ModuleType) and not hasattr(thing, part):
                    assert importlib.util.find_spec(f"{thing.__name__}.{part}"), f"{path.name}: {name}"
                    thing = importlib.import_module(f"{thing.__name__}.{part}")
                else:
                    assert hasattr(thing, part), f"{path.name}: {name}"
                    thing = getattr(thing, part)


def test_no_line_of_a_formula_begins_a_list():
    """In Markdown, `+ b$` at the start of a line is an item of a list, and its formula is shown as it was typed."""
    for path in pages():
        lines = re.sub(r"^```.*?^```", "", _text(path), flags=re.MULTILINE | re.DOTALL).splitlines()
        for before, line in itertools.pairwise(lines):
            within = before.replace("$$", "").count("$") % 2
            assert not (within and re.match(r"([-+*]|\d+[.)]) ", line)), f"{path.name}: {before} {line}"


@pytest.mark.parametrize("path", sorted((ROOT / "examples/gallery").glob("plot_*.py")), ids=lambda path: path.stem)
def test_a_program_of_the_gallery_runs_outside_a_clone(path):
    """Whoever downloads it has the library, and packages that it names, but no `examples` and no `tests`."""
    nodes = list(ast.walk(ast.parse(_text(path))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    packages = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert packages <= {"matplotlib", "numpy", "pytagi_ddp", "scipy", "sklearn"}
    assert "examples/" not in _text(path) and "examples.gallery" not in _text(path)


def printed(page: str) -> str:
    """What a program of the gallery printed when the pages were built."""
    return _text(DOCS / "gallery" / f"{page}.rst")


def numbers(page: str, pattern: str) -> list[list[float]]:
    """The groups of each place where the pattern stands in what a program printed."""
    return [[float(group) for group in found.groups()] for found in re.finditer(pattern, printed(page))]


def check_series_programs() -> None:
    scores = r"RMSE ([\d.]+),.* 90 % intervals hold (\d+)%"
    ((rmse, inside),) = numbers("plot_lstm", scores)
    assert rmse < 0.5 and inside > 75
    assert re.search(r"from hour 1870 on; .*: \[1870 1871 1872 1873\]", printed("plot_lstm"))
    ((accuracy,),) = numbers("plot_transformer", r"accuracy where the token was seen: ([\d.]+)")
    ((surest,),) = numbers("plot_transformer", r"largest probability where it was not: (\d+)%")
    assert accuracy > 0.98 and surest < 60
    near, _, day, later = numbers("plot_forecasting", scores)
    assert near[0] < 0.8 * day[0] and later[0] < 1.2 * day[0] and min(near[1], day[1], later[1]) > 75
    hidden_filter, observed_filter, hidden, observed = numbers("plot_smoothing", scores)
    assert hidden[0] < 0.85 * hidden_filter[0] and observed[0] < observed_filter[0] and hidden[1] > 90
    first, before, changed, missing = numbers("plot_online", scores)
    assert before[0] < 0.6 * first[0] and changed[0] < 2 * before[0]
    assert missing[0] > 2 * before[0] and missing[1] < 70 < before[1]


def check_image_programs() -> None:
    ((error, std),) = numbers("plot_generation", r"error ([\d.]+), standard deviation ([\d.]+)")
    assert error < 0.17 and 2 * std < error
    right, left, stretched = numbers("plot_wanted_input", r"misses by ([\d.]+), predicted ([\d.]+) \(\+- ([\d.]+)\)")
    assert max(*right, *left) < 0.05 and stretched[0] == pytest.approx(5**0.5 - 1.8, abs=0.02)
    assert stretched[1] > 10 * stretched[2]
    unchanged, noise, attack = numbers("plot_attack", r"([\d.]+)% are .* std (\d+)%, by entropy (\d+)%")
    assert unchanged[1:] == [50, 50] and noise[0] < 5 and attack[0] > 90 and attack[1] < 60 and attack[2] < 80


def check_regressions() -> None:
    among, gap, outside = numbers("plot_regression", r"standard deviation ([\d.]+), (\d+)% within two")
    assert among[0] < 0.06 and gap[0] > 3 * among[0] and outside[0] > 20 * among[0]
    assert among[1] < 90 and outside[1] > 95
    ((whole, left, right),) = numbers("plot_noise", r"([\d.]+)% of all, ([\d.]+)% left, ([\d.]+)% right")
    assert all(86 < share < 94 for share in (whole, left, right))
    assert numbers("plot_noise", r"(\d+)% of the curve within")[0][0] > 85
    with_nan, dropped, filled = numbers("plot_missing", r"RMSE ([\d.]+), ([\d.]+), ([\d.]+), ([\d.]+); (\d+)%")
    assert with_nan[0] == dropped[0] == filled[0] < 0.08
    assert 3 * with_nan[3] < filled[3] < dropped[3] and filled[4] < 20 < 85 < min(with_nan[4], dropped[4])
    assert numbers("plot_own_layer", r"at most (\d+) %")[0][0] < 6
    assert numbers("plot_own_layer", r"RMSE ([\d.]+), with")[0][0] < 0.05
    crowded, by_chance, even, evenly_by_chance = numbers("plot_active", r"error ([\d.]+) with 40 measurements")
    assert crowded[0] < 0.7 * by_chance[0] and evenly_by_chance[0] < 0.7 * even[0]


def check_classifiers() -> None:
    ((of_all, of_half),) = numbers("plot_classes", r"([\d.]+)% of all, ([\d.]+)% of")
    assert of_half < of_all < 5
    heads = numbers("plot_heads", r"error ([\d.]+)%, of the surest half ([\d.]+)%; calibration error \(ECE\) ([\d.]+)")
    assert len(heads) == 4
    for error, of_half, calibration in heads:
        assert error < 8 and of_half < 0.25 * error and calibration < 0.2
    scores = [score for (score,) in numbers("plot_foreign", r"(?m)^ +[^:]+: AUROC ([\d.]+)$")]
    shuffled, turned, bright, noise = (scores[k : k + 3] for k in range(0, 12, 3))  # by entropy, variance, distance
    assert min(shuffled[0], noise[0]) > 0.9 and turned[0] < 0.75 and bright[0] + 0.1 < 0.95
    assert bright[1] > 0.95 and max(shuffled[1], turned[1], noise[1]) < 0.2
    assert min(kind[2] for kind in (shuffled, turned, bright, noise)) > 0.95
    removed = numbers("plot_inside", r"removed: 0% ([\d.]+)%, .* 60% ([\d.]+)%, 70% .* 80% ([\d.]+)%")
    (none, most, nearly_all), by_size, by_chance = removed
    assert none < 5 and max(most, nearly_all, *by_size) < none + 2 and by_chance[1] > 40


def check_rank_programs() -> None:
    *alone, average, merged = numbers("plot_federated", r"RMSE ([\d.]+), standard deviation ([\d.]+)")
    assert all(3 * average[0] < rmse and 2 * std < rmse for rmse, std in alone)
    assert 3 * merged[0] < average[0] and 3 * merged[1] < average[1]
    ranks = printed("plot_ranks")
    assert "equal to the last bit: True" in ranks and "raised: rank 1 has no data" in ranks
    assert float(re.search(r"by rounding: (.*)", ranks)[1]) < 1e-4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_builds_without_a_warning_and_its_programs_find_what_they_say():
    needed = (
        "sphinx",
        "pydata_sphinx_theme",
        "myst_parser",
        "sphinx_gallery",
        "sphinx_design",
        "latex2mathml",
        "sklearn",
    )
    for module in needed:
        pytest.importorskip(module, reason=f"{module} is not installed (the extra docs)")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-E", "-q", "-b", "html"]
    if not ALL_TESTS:  # `make docs` shows the source code
        command += ["-t", "without_sources"]
    environment = os.environ | {"PYTAGI_DDP_NUM_THREADS": "1"}  # other tests want the cores; the numbers are the same
    command += ["docs", "docs/_build/html"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    documented = (DOCS / "_build" / "html" / "api" / "generated").glob("*.html")
    assert not [path.name for path in documented if re.search(r"<p>\*\*[A-Z]", _text(path))]  # is bold
    check_series_programs()
    check_image_programs()
    check_regressions()
    check_classifiers()
    check_rank_programs()
    ((rmse, spread),) = numbers("plot_table", r"RMSE ([\d.]+), of a standard deviation of ([\d.]+)")
    assert rmse < 0.9 * spread and 80 < numbers("plot_table", r"(\d+)% of the observations are in")[0][0] < 97
    searches = numbers("plot_search", r"([\d.]+) above the minimum; random places ([\d.]+)")
    assert len(searches) == 2 and all(found < 0.5 * by_chance for found, by_chance in searches)
