"""What is written about the package more than once is the same everywhere."""

import tomllib
from pathlib import Path

import pytest
import yaml

from closure_kmeans import __version__
from closure_kmeans.cli.doctor import DEVELOPMENT

ROOT = Path(__file__).parent.parent


@pytest.fixture
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_conda_recipe(project):
    """The conda recipe has the version, dependencies, command and licences of pyproject.toml."""
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text("utf-8"))
    facts, requirements = project["project"], recipe["requirements"]
    assert recipe["package"]["name"] == facts["name"]
    assert recipe["context"] == {"version": __version__, "python_min": facts["requires-python"].removeprefix(">=")}
    python, *dependencies = requirements["run"]
    assert python == "python >=${{ python_min }}"
    assert [dependency.replace(" ", "") for dependency in dependencies] == facts["dependencies"]
    assert [requirements["host"][-1].replace(" ", "")] == project["build-system"]["requires"]
    commands = [f"{name} = {function}" for name, function in facts["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == commands
    assert recipe["about"] == {
        "summary": facts["description"],
        "license": facts["license"],
        "license_file": facts["license-files"],
    }


def test_extras(project):
    """``closure-kmeans doctor`` lists the libraries of the extras that are for users."""
    extras = set(project["project"]["optional-dependencies"])
    assert extras - set(DEVELOPMENT) == {"dask", "explore", "faiss", "images", "io", "plot"}
