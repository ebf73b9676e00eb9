# Everything runs in a virtual environment of its own, made on first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help demo explore test test-inputs test-lowest test-next test-arm lint format docs paper dist clean

# Older processors, whose code is made and runs on newer ones: vectors of 32 bytes with FMA, and of 16 bytes without.
# Without NUMBA_CPU_FEATURES Numba would add all that the host has.
HASWELL := NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx2,+fma OPENBLAS_CORETYPE=Haswell
NEHALEM := NUMBA_CPU_NAME=nehalem NUMBA_CPU_FEATURES=+sse4.2 OPENBLAS_CORETYPE=Nehalem

# PyTorch without CUDA, for make test-inputs.
TORCH := torch --torch-backend cpu

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/plot.stamp  ## cluster real data, compare with exact Lloyd, draw a picture
	@$(BIN)/closure-kmeans demo

explore: $(VENV)/explore.stamp  ## look at clusters in a browser: of CLOSURE_KMEANS_DATA if it names photos, else the embedded data
	@$(BIN)/python -m benchmarks.explore

test: $(VENV)/test.stamp  ## run all tests, then those of the kernels with the JIT off, with bounds checks, and for older processors
	$(BIN)/pytest -q -n 2
	NUMBA_DISABLE_JIT=1 $(BIN)/coverage run -m pytest -q -m kernels
	$(BIN)/coverage report --include='*/kernels/*.py,*/kernels.py' --fail-under=100
	NUMBA_BOUNDSCHECK=1 $(BIN)/pytest -q -n 2 -m kernels
ifeq ($(shell uname -m),x86_64)
	$(HASWELL) $(BIN)/pytest -q -n 2 tests/kernels
	$(NEHALEM) $(BIN)/pytest -q -n 2 tests/kernels
endif

test-inputs: $(VENV)/release.stamp  ## run the tests of rows of other libraries, with PyTorch and JAX too
	$(BIN)/uv venv -q --clear --python $(PYTHON) $(VENV)/inputs
	$(BIN)/uv pip install -q --python $(VENV)/inputs $(TORCH)
	$(BIN)/uv pip install -q --python $(VENV)/inputs -e '.[test]' jax
	$(VENV)/inputs/bin/python -c 'import datasets, jax, lance, ml_dtypes, pandas, polars, pyarrow, torch, zarr'
	$(VENV)/inputs/bin/python -m pytest -q tests/test_inputs.py

test-lowest: $(VENV)/release.stamp  ## run the quick tests with the lowest versions that pyproject.toml allows
	$(BIN)/uv venv -q --clear --python 3.11 $(VENV)/lowest
	$(BIN)/uv pip install -q --python $(VENV)/lowest --resolution lowest-direct -e '.[test]'
	$(VENV)/lowest/bin/python -m pytest -q -n 2 -W ignore::DeprecationWarning -m 'not slow' tests

test-next: $(VENV)/release.stamp  ## run the quick tests with the newest Numba, pre-releases too, beyond the bound in pyproject.toml
	$(BIN)/uv venv -q --clear --python $(PYTHON) $(VENV)/next
	$(BIN)/uv pip install -q --python $(VENV)/next -e '.[test]'
	$(BIN)/uv pip install --python $(VENV)/next --prerelease allow --upgrade-package numba --upgrade-package llvmlite numba llvmlite
	$(VENV)/next/bin/python -m pytest -q -n 2 -m 'not slow' tests

test-arm: $(VENV)/release.stamp  ## run a fit and the tests of the kernels on an emulated aarch64; needs Debian and root
	.ci/arm

lint: $(VENV)/dev.stamp  ## check style and types
	! git grep -nE '^(<{7}|>{7}) '
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

dist: $(VENV)/release.stamp  ## build the wheel and the source distribution, check them, run the demo from the wheel
	.ci/dist

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
