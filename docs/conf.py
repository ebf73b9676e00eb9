"""The site: pages in Markdown, the guides made from ``examples``, the API from the docstrings."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.inspect import signature, stringify_signature
from sphinx_gallery.sorting import FunctionSortKey

sys.path.insert(0, str(Path(__file__).parent.parent))  # the benchmarks, which are no part of the package

import closure_kmeans
from benchmarks.figures import read_tables
from closure_kmeans.estimator import BaseKMeans

DOCS = Path(__file__).parent
ROOT = DOCS.parent

project = "closure-kmeans"
author = "The closure-kmeans developers"
project_copyright = author
version = release = closure_kmeans.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]

html_theme = "pydata_sphinx_theme"
html_title = "closure-kmeans"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "navbar_persistent": ["search-button-field"],
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "show_toc_level": 2,
}
html_sidebars: dict[str, list[str]] = {name: [] for name in ("index", "method/index")}

myst_enable_extensions = ["attrs_block", "colon_fence", "substitution"]
myst_substitutions = {"results": read_tables()}  # the figures that pages quote
myst_heading_anchors = 3

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_type_aliases = {name: name for name in ("ArrayLike", "DTypeLike", "Images", "ImageLike", "Source")}
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False
# Sections of every public docstring: parameters and results with descriptions, See Also and Examples. Excluded are
# named tuples, whose fields are described by their comments (``describe_fields``); their methods are not.
numpydoc_validation_checks = {"GL08", "PR01", "PR02", "PR07", "RT01", "RT03", "SA01", "EX01"}
numpydoc_validation_exclude = {
    r"\.(Iteration|Level|Members|RandomPartition|Report)$",
    r"^closure_kmeans\.features\.(ImageVectors|LocalFeatures|Skipped)$",
    r"^closure_kmeans\.retrieval\.(Collection|Extraction|OxfordQuery|Query|Result|Steps|Words)$",
    r"^closure_kmeans\.retrieval\.(Alignment|InvertedFile|Matches|Places|Ranking|Verification)$",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

# In the order in which they are shown.
GUIDES = [
    "ivf_quantizer.py",
    "lancedb_index.py",
    "colbert_centroids.py",
    "deduplicate_text.py",
    "semantic_ids.py",
    "colmap_vocabulary.py",
    "browse_images.py",
    "larger_than_memory.py",
    "dask_cluster.py",
]
# Guides that are left out where what they need is not installed.
AWAITED = {"deduplicate_text.py": "wordllama", "semantic_ids.py": "wordllama"}
waiting = [re.escape(name) for name, module in AWAITED.items() if find_spec(module) is None]

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "guides",
    "filename_pattern": r"\.py$",
    "ignore_pattern": "|".join(["__init__", *waiting]),
    "within_subsection_order": FunctionSortKey(GUIDES.index, "as in GUIDES"),
    "remove_config_comments": True,
    "default_thumb_file": str(DOCS / "images" / "method" / "active-points.png"),
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "show_memory": False,
}


# What pages link to outside of this folder, and the page that has it.
OUTSIDE = {
    "benchmarks/results/": "benchmarks/results/",
    "benchmarks/README.md": "benchmarks/how.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "developers/index.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
}


def copy_results(app: Sphinx) -> None:
    """Copy the tables and pictures of the benchmarks beside the pages that include them."""
    results = DOCS / "benchmarks" / "results"
    shutil.rmtree(results, ignore_errors=True)
    shutil.copytree(ROOT / "benchmarks" / "results", results, ignore=shutil.ignore_patterns("*.jsonl"))


def run_recipes(app: Sphinx) -> None:
    """Run the examples of two pages, as the gallery runs the guides."""
    if str(app.config.plot_gallery) in ("True", "1"):  # not with -D plot_gallery=0
        for page in ("start/recipes.md", "start/coming-from.md"):
            examples = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
            with (
                TemporaryDirectory() as folder,
                chdir(folder),
                redirect_stdout(StringIO()),
                redirect_stderr(StringIO()),
            ):
                exec("\n".join(examples), {"__name__": page})


def forget_pages(app: Sphinx) -> None:
    """Remove pages that are made at each build, and those of guides that are gone."""
    shutil.rmtree(DOCS / "generated", ignore_errors=True)
    guides = {"index", *(name.removesuffix(".py") for name in GUIDES)}
    for page in (DOCS / "guides").glob("*.*"):
        if page.name.split(".")[0] not in guides:
            page.unlink()


def stay_inside(app: Sphinx, name: str, source: list[str]) -> None:
    """Point links that lead out of this folder to the pages that show the same."""
    for place, page in OUTSIDE.items():
        source[0] = source[0].replace(f"](../{place}", f"]({page}")


def keep_units(app: Sphinx, document: nodes.document) -> None:
    """Let no line of a table end between a number and its unit."""
    for table in document.findall(nodes.table):
        for text in list(table.findall(nodes.Text)):
            whole = re.sub(r"(?<=\d) (?=(%|s|ms|µs|ns|MB|GB)(?!\w))", "\N{NO-BREAK SPACE}", text)
            text.parent.replace(text, nodes.Text(whole))


def name_aliases(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, arguments: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show the parameters of estimators, not of ``BaseKMeans.__new__``; and type aliases by their names."""
    if what == "class" and issubclass(thing, BaseKMeans):
        own = signature(thing.__init__, bound_method=True, type_aliases=app.config.autodoc_type_aliases)
        arguments = stringify_signature(own, show_return_annotation=False)
    arguments, returns = (
        text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text) for text in (arguments, returns)
    )
    return arguments, returns


def describe_fields(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Let the comments behind the fields of a named tuple be their description."""
    if what != "class" or not hasattr(thing, "_fields") or "Parameters" in lines:  # described by the docstring
        return
    found = re.findall(r"^    (\w+): ([^#\n=]+?)(?: = [^#\n]+?)?(?:  # (.+))?$", inspect.getsource(thing), re.MULTILINE)
    comments = {field: (kind, comment) for field, kind, comment in found}
    attributes = ["", "Attributes", "----------"]
    for field in thing._fields:
        kind, comment = comments[field]
        attributes += [f"{field} : {kind}", f"    {comment}"]
    at = next((i for i, line in enumerate(lines) if line == "Examples" or line.startswith(">>>")), len(lines))
    lines[at:at] = [*attributes, ""]


# Methods of ``CenterIndex`` that are for the library itself.
UNCHECKED = ("of", "find", "rounded", "find_several", "relative", "grouped", "pack", "unpack")


def skip_member(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what is described elsewhere: fields of named tuples, and scikit-learn's methods. And ``UNCHECKED``."""
    foreign = (getattr(thing, "__module__", None) or "").startswith("sklearn.")
    internal = getattr(thing, "__qualname__", "") in [f"CenterIndex.{method}" for method in UNCHECKED]
    return True if foreign or internal or type(thing).__name__ == "_tuplegetter" else None


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    app.connect("builder-inited", copy_results, priority=100)
    app.connect("builder-inited", forget_pages, priority=100)
    app.connect("builder-inited", run_recipes)
    app.connect("source-read", stay_inside)
    app.connect("doctree-read", keep_units)
    app.connect("autodoc-process-signature", name_aliases)
    app.connect("autodoc-process-docstring", describe_fields, priority=100)
    app.connect("autodoc-skip-member", skip_member)
