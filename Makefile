# Everything a newcomer needs. Each target does its own set-up: a virtual environment in .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test clusters later check lint format types layers bench fuzz clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "icefloe needs Python 3.11 or later; try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,demo]'
	@touch $@

demo: $(READY) ## See it work: a year of NetCDF files on Spark, from files to a query and a picture
	@MPLBACKEND=agg $(BIN)/python demo/demo.py

test: $(READY) ## Run the tests
	$(BIN)/python -m pytest -n 2 --ignore tests/clusters

clusters: $(READY) ## Run the pipeline on Spark Connect and on a standalone cluster, killing workers
	$(BIN)/python -m pytest tests/clusters

# What depends on the versions of Python, zarr and icechunk; the rest would only take as long again.
LATER := tests/facade tests/compat tests/store tests/test_golden.py tests/transaction/test_moves.py

later: $(READY) ## Run the tests that versions matter to with a later Python, where there is one
	@$(BIN)/python tests/support/later_python.py -m pytest -n 2 $(LATER)

check: lint types layers ## Style, types and layers

lint: $(READY) ## Style: ruff
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(READY) ## Rewrite the code in the project's style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(READY) ## Types: mypy, strict
	$(BIN)/mypy

layers: $(READY) ## Layers: import-linter
	$(BIN)/lint-imports

# With both generations of the wheel: the later one needs a later Python.
bench: $(READY) ## Compare speed, memory and size with the icechunk wheel, in one run
	@folder=$$(mktemp -d); \
	$(BIN)/python bench/run.py $$folder/a $(BENCH); first=$$?; \
	$(BIN)/python tests/support/later_python.py bench/run.py $$folder/b $(BENCH); second=$$?; \
	rm -rf $$folder; exit $$((first | second))

fuzz: $(READY) ## Throw damaged files at the decoders for a minute
	$(BIN)/python fuzz/fuzz_formats.py --seconds 60

clean: ## Remove the environments and caches
	rm -rf $(VENV) .venv-later .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
