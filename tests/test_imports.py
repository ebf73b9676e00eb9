"""The outer packages use public names of the core only, and the core does not know them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import closure_kmeans

PACKAGE = Path(closure_kmeans.__file__).parent
OUTER = ("baselines", "cli", "codes", "distributed", "explorer", "features", "retrieval")
CORE = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in OUTER]
# Applications of the library, which may use all of it.
APPLICATIONS = {"__main__.py", "warmup.py"}
# Methods that every named tuple has.
OF_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name not in OF_TUPLES


def imported(tree):
    """The modules that are imported, and the names from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or "", [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)


def is_self(node):
    inherited = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    return inherited or (isinstance(node, ast.Name) and node.id in ("self", "cls"))


def private_attributes(tree):
    """Attributes with a private name of objects whose class is in another module."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_private(node.attr)]
    own = {node.attr for node in attributes if is_self(node.value)}
    return [f"line {node.lineno}: {ast.unparse(node)}" for node in attributes if node.attr not in own]


@pytest.mark.parametrize("room", OUTER)
def test_an_outer_package_uses_public_names(room):
    for path in (PACKAGE / room).rglob("*.py"):
        tree = ast.parse(path.read_text())
        for module, names in imported(tree):
            parts = module.split(".")
            if parts[0] == "closure_kmeans" and parts[1:2] != [room]:
                private = [name for name in [*parts, *names] if is_private(name)]
                assert not private, f"{path.name} imports {private} from {module}"
        assert private_attributes(tree) == [], path.name


def test_the_core_does_not_import_outer_packages():
    """But inside functions: the pages of a notebook, and the classes that a file may hold."""
    for path in CORE:
        if path.name in APPLICATIONS:
            continue
        tree = ast.parse(path.read_text())
        at_once = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
        for module, names in imported(at_once):
            rooms = {
                module.removeprefix("closure_kmeans.").split(".")[0],
                *(names if module == "closure_kmeans" else ()),
            }
            assert rooms.isdisjoint(OUTER), f"{path.name} imports {module}"


def test_one_module_knows_the_threshold_of_the_search():
    assert [path.name for path in PACKAGE.rglob("*.py") if "MANY_CENTERS" in path.read_text()] == ["search.py"]


def test_the_estimator_imports_nothing_but_itself_on_top_of_scikit_learn():
    code = (  # scikit-learn 1.6 does without the last two
        "import sys, sklearn.base, numpy.typing, concurrent.futures.thread; before = set(sys.modules); "
        "from closure_kmeans import ClosureKMeans; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["closure_kmeans"]
