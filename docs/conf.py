"""How the documentation is built: `make docs`."""

import re
import sys
from importlib import import_module
from importlib.metadata import metadata
from pathlib import Path

import latex2mathml.converter
from docutils.nodes import SkipNode
from numpy.typing import ArrayLike
from sphinx.util.typing import stringify_annotation
from sphinx_gallery.sorting import FileNameSortKey

import pytagi_ddp

sys.path.insert(0, str(Path(__file__).parent))
from groups import NETWORKS, groups_of

project, author, copyright = "pytagi_ddp", "The pytagi_ddp developers", "The pytagi_ddp developers, MIT licence"
version = release = pytagi_ddp.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
if not tags.has("without_sources"):  # noqa: F821 (Sphinx defines it); tests ask for no pages of source code
    extensions.append("sphinx.ext.viewcode")
exclude_patterns = ["_build", "images", "gallery/*.ipynb"]
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme = "pydata_sphinx_theme"
html_title = f"pytagi_ddp {release}"
html_show_sourcelink = False
html_theme_options = {
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}
# A release names the repository, in pyproject.toml.
repository = next((url.split(", ")[1] for url in metadata("pytagi-ddp").get_all("Project-URL") or ()), None)
if repository:
    html_theme_options["icon_links"] = [{"name": "Repository", "url": repository, "icon": "fa-solid fa-code-branch"}]
html_sidebars = {
    page: [] for page in ("index", "start", "tagi", "gpu", "glossary", "changelog", "cite")
}  # nothing is below

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"
python_maximum_signature_line_length = 88

highlight_language = "text"  # formulas in docstrings; other blocks name their language
default_role = "py:obj"  # `Sequential` in a docstring leads to its page, and `every=k` is code
autosummary_generate = True
autosummary_context = {"groups": {network.__name__: groups_of(network) for network in NETWORKS}}
autodoc_typehints = "signature"
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}  # in overloads, which `shorten` does not see
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", ".*"),  # code in docstrings need not name a page
    # Types that have no page.
    ("py:(class|data)", r"(?!pytagi_ddp\.(nn|data|distributed|checkpoint|likelihoods|training)\.[A-Z]\w+$).*"),
]
toc_object_entries_show_parents = "hide"
suppress_warnings = ["config.cache"]

# The gallery begins with these; others follow by name.
FIRST = (
    *("regression", "noise", "missing", "table", "classes", "heads", "foreign", "active", "inside"),
    *("forecasting", "smoothing", "online", "generation", "wanted_input", "attack", "own_layer", "ranks"),
)


class Order(FileNameSortKey):
    """Sorts the programs of the gallery: what a newcomer looks at first comes first."""

    def __call__(self, filename: str) -> tuple[int, str]:
        name = filename.removeprefix("plot_").removesuffix(".py")
        return (FIRST.index(name) if name in FIRST else len(FIRST)), name


sphinx_gallery_conf = {
    "within_subsection_order": Order,
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": "plot_",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "plot_gallery": "True",
}

# Public names, by what a docstring or a type may call them.
MODULES = ("nn", "distributed", "data", "checkpoint", "metric", "models", "cuda", "tagi_utils", "plot", "arrays")
MODULES = (*MODULES, "likelihoods", "training", "estimators", "forecasting", "onnx")
PUBLIC: dict[str, str] = {}
for module in MODULES:
    namespace = import_module(f"pytagi_ddp.{module}")
    for name in getattr(namespace, "__all__", ()):
        thing = getattr(namespace, name)
        PUBLIC.setdefault(name, f"pytagi_ddp.{module}.{name}")
        if hasattr(thing, "__qualname__"):  # is not a table of constants
            PUBLIC.setdefault(f"{thing.__module__}.{thing.__qualname__}", PUBLIC[name])

# Files of the repository that are pages here, too, and what has no page.
PAGES = {
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/quality/README.md": "quality.md",
}
GALLERY = re.compile(r"\]\((?:\.\./)+examples/gallery/(?:(plot_\w+)\.py|GALLERY_HEADER\.rst)")
THUMBNAIL = re.compile(r":alt:(\n(?:(?!:alt:).)*?thumbnail-title\">([^<]*)</div>)", re.DOTALL)
ARRAY_LIKE = stringify_annotation(ArrayLike, "smart")
INDENT = re.compile(r"^ *")
CODE = re.compile(r"(``.+?``|`[^`]+`)")
BOLD = re.compile(r"(?<![\w*])(\*\*\w[^*]*[\w.]\*\*)(?![\w*])")  # not 2**31


TABLE = re.compile(r" *=+( +=+)+")


def as_rst(app, what, name, obj, options, lines: list[str]) -> None:
    """Makes reStructuredText of a docstring, before napoleon reads its sections.

    What is indented behind an empty line is a formula or code, and is shown as it is, and so is a table; `*`, `|` and a
    trailing `_` mean themselves, but **words** are bold; what stands between backticks is a name that may have a page,
    or code.
    """
    edges = [k for k, line in enumerate(lines) if TABLE.fullmatch(line)]
    for first, last in zip(edges[::3], edges[2::3], strict=True):
        lines[first : last + 1] = ["    " + line for line in lines[first : last + 1]]
    out: list[str] = []
    literal, before, empty = None, "", True  # indentation around a literal block; last line with text; line before
    for line in lines:
        if not line.strip():
            out.append(line)
            empty = True
            continue
        indent = len(INDENT.match(line)[0])
        if literal is not None and indent <= literal:
            literal = None
        last = len(INDENT.match(before)[0])
        if literal is None and empty and before and indent > last and not re.fullmatch(r" *[A-Z]\w+:", before):
            literal = last
            out.extend([" " * last + "::", ""])
        out.append(line if literal is not None else _escaped(line))
        before, empty = line, False
    lines[:] = out


def _escaped(line: str) -> str:
    parts = CODE.split(line)
    for k, part in enumerate(parts):
        if k % 2 == 0:
            words = BOLD.split(part)
            words[::2] = [re.sub(r"(\*|\||_(?=\W|$))", r"\\\1", word) for word in words[::2]]
            parts[k] = "".join(words)
        elif not re.fullmatch(r"`[\w.]+`|``.*", part):
            parts[k] = f"`{part}`"
    return "".join(parts)


def shorten(app, what, name, obj, options, signature, returns):
    """Types that NumPy spells out get their name back."""
    if signature:
        signature = signature.replace(ARRAY_LIKE, "ArrayLike")
    return signature, returns


def find_public(app, env, node, contnode):
    """Leads a name to where it is public: `Sequential`, `pytagi_ddp.nn.sequential.Sequential`."""
    if node.get("refdomain") != "py":
        return None
    name, _, member = node["reftarget"].partition(".") if node["reftype"] == "obj" else (node["reftarget"], "", "")
    full = PUBLIC.get(name)
    if full is None:
        return None
    target = f"{full}.{member}" if member else full
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, contnode)


def to_pages(app, docname: str, source: list[str]) -> None:
    """Links to files of the repository that are pages lead to the pages; the repository is linked, too."""
    for file, page in PAGES.items():
        source[0] = re.sub(rf"\]\((?:\.\./)+{re.escape(file)}", f"](/{page}", source[0])
    source[0] = GALLERY.sub(lambda found: f"](/gallery/{found[1] or 'index'}", source[0])
    if repository:
        source[0] = source[0].replace("clone of the repository", f"clone of [the repository]({repository})")


def describe_thumbnails(app, docname: str, source: list[str]) -> None:
    """Gives each thumbnail of the gallery the title of its page as text for readers that see no pictures."""
    if docname == "gallery/index":
        source[0] = THUMBNAIL.sub(r":alt: Picture: \2\1", source[0])


def beside(app, relative_path, parent_docname: str, source: list[str]) -> None:
    """Links in an included file lead to what is beside that file."""
    folder = Path(relative_path).parent
    if folder.name == "benchmarks":
        text = source[0].replace("[NOTES.md](NOTES.md)", "`benchmarks/NOTES.md`").replace("](../docs/", "](")
        source[0] = text.replace("](results/", "](../benchmarks/results/")


def of_scikit_learn(app, what, name, obj, skip, options) -> bool | None:
    """Leaves out what scikit-learn makes for its own routing of arguments."""
    return True if re.fullmatch(r"set_\w+_request|get_metadata_routing", name) else None


def show_math(self, node) -> None:
    """Formulas as MathML, which browsers show without a script from elsewhere."""
    display = "block" if node.tagname == "math_block" else "inline"
    math = latex2mathml.converter.convert(node.astext(), display=display)
    self.body.append(f'<div class="math">{math}</div>' if display == "block" else math)
    raise SkipNode


def setup(app) -> None:
    app.connect("autodoc-process-docstring", as_rst, priority=100)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-skip-member", of_scikit_learn)
    app.connect("missing-reference", find_public)
    app.connect("source-read", to_pages)
    app.connect("source-read", describe_thumbnails)
    app.connect("include-read", beside)
    app.add_html_math_renderer("mathml", (show_math, None), (show_math, None))


html_math_renderer = "mathml"
