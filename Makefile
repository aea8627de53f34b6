# `make demo` and `make test` do everything on a fresh machine with Python 3.11, git and make.
# `make demo` installs what the package needs, all else also what tests, types and docs need.
# `make test` covers every folder in at most ten minutes on two idle cores; `make test-all` adds the rest.
PYTHON ?= python3.11
BIN := .venv/bin
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest
PARALLEL := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
COVERAGE := PYTHONPATH=$(CURDIR)/tests/support $(BIN)/python -m coverage
RECIPE ?= search_spaces.digits:optimizers
TRIALS ?= 48
GPU_SECONDS ?= 520
GPU_JSON ?= gpu.json

# Compiled modules are kept even where the environment forbids it: the tests start many processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all soak gpu coverage docs lint audit wheel clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/installed-all: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
	    --editable '.[dev,oracles,services,lightning,huggingface,lowbit]'
	touch $@

demo: .venv/installed
	rm -rf studies/demo
	$(BIN)/autotune run $(RECIPE) --trials $(TRIALS) --repeats 5 --experience off --out studies/demo

test: .venv/installed-all
	$(PYTEST) $(PARALLEL) -m 'not slow and not soak'

test-all: test
	$(PYTEST) $(PARALLEL) -m 'slow and not soak'

soak: .venv/installed-all
	$(PYTEST) -m soak -s

gpu: PYTHON = python3
gpu:
	$(PYTHON) benchmarks/gpu.py --seconds $(GPU_SECONDS) --json $(GPU_JSON)

coverage: .venv/installed-all
	$(BIN)/python -m pip install --quiet 'coverage>=7.10'
	rm -f .coverage*
	$(COVERAGE) run --rcfile=tests/coveragerc -m pytest $(PARALLEL) -m 'not soak'
	$(COVERAGE) combine --quiet --rcfile=tests/coveragerc
	$(COVERAGE) json --quiet --rcfile=tests/coveragerc -o .coverage.json
	$(BIN)/python tests/support/coverage_by_folder.py .coverage.json

docs: .venv/installed-all
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: .venv/installed-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

audit:
	.ci/audit $(PYTHON)

wheel: .venv/installed-all
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf .venv dist build studies .pytest_cache .mypy_cache .ruff_cache .hypothesis
