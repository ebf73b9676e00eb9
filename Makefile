# Everything runs in a virtual environment of its own, made on first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help demo explore test lint format docs paper clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/plot.stamp  ## cluster real data, compare with exact Lloyd, draw a picture
	@$(BIN)/closure-kmeans demo

explore: $(VENV)/explore.stamp  ## look at clusters in a browser: of CLOSURE_KMEANS_DATA if it names photos, else the embedded data
	@$(BIN)/python -m benchmarks.explore

test: $(VENV)/test.stamp  ## run all tests, then those of the kernels with the JIT off and with bounds checks
	$(BIN)/pytest -q -n 2
	NUMBA_DISABLE_JIT=1 $(BIN)/coverage run -m pytest -q -m kernels
	$(BIN)/coverage report --include='*/kernels/*.py,*/kernels.py' --fail-under=100
	NUMBA_BOUNDSCHECK=1 $(BIN)/pytest -q -n 2 -m kernels

lint: $(VENV)/dev.stamp  ## check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/dev.stamp  ## rewrite the code in our style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/docs.stamp  ## run all guides and build the site: docs/_build/html/index.html
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

paper: $(VENV)/bench.stamp  ## repeat the figures and tables of the paper, at quick sizes
	$(BIN)/python -m benchmarks.paper

clean:  ## remove the environment and everything that was generated
	rm -rf $(VENV) .cache .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist closure-kmeans-demo.png
	rm -rf docs/_build docs/generated docs/guides docs/benchmarks/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The package, editable, with the extra that the stamp is named after. pip is that of $(PYTHON), so that
# a Python without ensurepip will do.
$(VENV)/%.stamp: pyproject.toml
	@echo "setting up $(VENV) for '$*', once"
	@$(PYTHON) -m venv --without-pip $(VENV)
	@$(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check install -qq -e '.[$*]'
	@touch $@
