# Each target creates the environments it needs. `make help` lists the targets.

# Python 3.13 or 3.12, else a later one, else 3.11 with the libraries that still support it.
PYTHON ?= $(shell python3 tests/support/find_python.py 3.13 3.12 3.14 3.11)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Runs a command with the interpreter of .venv-oldest.
OLDEST := $(BIN)/python tests/support/environments.py

# The tests of `make quick`; --quick skips those that need servers, Spark or Icechunk processes.
QUICK_TESTS := tests/model tests/format tests/assets tests/refs tests/transaction tests/session \
	tests/store tests/inspection tests/containers/test_authorization.py \
	tests/containers/test_by_table.py tests/containers/test_containers.py \
	tests/containers/test_listing.py tests/facade/test_exports.py
QUICK_SKIPS := tests/transaction/test_state_machine.py tests/store/test_state_machines.py \
	tests/store/test_remote.py tests/store/test_codec_pipeline.py tests/refs/test_races.py \
	tests/format/test_bounded_resources.py tests/format/test_vectorised.py
QUICK := ICEFLOE_HYPOTHESIS=quick $(BIN)/python -m pytest -q -n 2 --quick $(QUICK_TESTS) \
	$(addprefix --ignore ,$(QUICK_SKIPS))
# The tests that depend on versions of Python, zarr, Icechunk, VirtualiZarr and PySpark.
OLDEST_TESTS := tests/model tests/facade tests/compat tests/store tests/virtual tests/test_golden.py \
	tests/interop/test_same_bytes.py tests/transaction/test_moves.py tests/spark tests/pipeline/jobs \
	--ignore tests/pipeline/jobs/test_generations_on_spark.py \
	--ignore tests/compat/test_behaviour_beside_icechunk.py
AGAIN := -m pytest -n 0 --last-failed --last-failed-no-failures none
# `make full FULL='-m full'` runs only what `make test` leaves out.
FULL ?=
PANDAS3 := $(VENV)/pandas3
SPARK_VERSIONS ?= 4.1 4.2 4.3

# $(call timed,name,command): run a command and print its duration.
timed = @start=$$(date +%s); $(2); code=$$?; seconds=$$(($$(date +%s) - start)); \
	echo "$(1) took $$((seconds / 60)) min $$((seconds % 60)) s"; exit $$code

.DEFAULT_GOAL := help
.PHONY: help demo quick test again full coverage clusters oldest oldest-again pandas3 spark-versions check lint format types layers \
	hooks bench fuzz stress wheel clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "icefloe needs Python 3.12 or 3.13; try: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; \
		sys.exit("icefloe needs Python 3.11 or later") if v < (3, 11) else None; \
		v < (3, 12) and print("!!! Python 3.12 OR LATER WAS NOT FOUND: the newest libraries are not tested")'
	@test ! -x $(BIN)/python || test "$$($(BIN)/python -V)" = "$$($(PYTHON) -V)" || rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,demo]'
	@touch $@

demo: $(READY) ## A year of NetCDF files on Spark: from files to a query and a plot; GENERATION=draft
	@MPLBACKEND=agg $(BIN)/python demo/demo.py 365 $(GENERATION)

quick: $(READY) ## Style, types, layers and fast tests: about four minutes on two cores
	$(call timed,make quick,$(MAKE) --no-print-directory check && $(QUICK))
	@echo "Left out: tests that need servers, Spark or Icechunk processes, state machines and races, and"
	@echo "$(filter-out $(QUICK_TESTS) tests/conftest.py tests/golden tests/support tests/oldest.txt,$(wildcard tests/*[!_]))"

test: $(READY) ## All tests except clusters, with coverage: about 20 minutes on two cores
	@echo "make test takes about 20 minutes on two cores (make quick: four)"
	$(call timed,make test,COVERAGE_CORE=sysmon $(BIN)/python -m pytest -n 2 --ignore tests/clusters --cov)

again: $(READY) ## The tests that failed last, one at a time
	$(call timed,make again,$(BIN)/python $(AGAIN))

full: $(READY) ## All tests, with the combinations that make test leaves out
	$(call timed,make full,$(BIN)/python -m pytest -n 2 --full --ignore tests/clusters $(FULL))

coverage: $(READY) ## The tests of make quick with the lines they miss
	$(call timed,make coverage,COVERAGE_CORE=sysmon $(QUICK) --cov --cov-report=term-missing:skip-covered)

clusters: $(READY) ## Jobs on Spark Connect and a standalone cluster with failing workers
	$(call timed,make clusters,$(BIN)/python -m pytest --timeout 1800 tests/clusters)

oldest: $(READY) ## The tests that depend on versions, on Python 3.11 with the oldest libraries
	$(call timed,make oldest,$(OLDEST) -m pytest -n 2 $(OLDEST_TESTS))

oldest-again: $(READY) ## The tests of make oldest that failed last, one at a time
	$(call timed,make oldest-again,$(OLDEST) $(AGAIN) $(OLDEST_TESTS))

spark-versions: $(READY) ## The Spark tests with each PySpark release series, in temporary environments
	@for version in $(SPARK_VERSIONS); do \
		folder=$$(mktemp -d); echo "PySpark $$version"; \
		$(BIN)/python -m venv $$folder && \
		$$folder/bin/python -m pip install --quiet --disable-pip-version-check \
			--editable '.[test,demo]' "pyspark[connect]==$$version.*" && \
		$$folder/bin/python -m pytest -q -n 2 tests/spark tests/pipeline/jobs tests/test_demo.py \
			|| failed="$$failed $$version"; \
		rm -rf $$folder; \
	done; test -z "$$failed" || { echo "failed with PySpark$$failed"; exit 1; }

pandas3: $(READY) ## The tests of xarray and virtual datasets with pandas 3, which PySpark does not support yet
	@test -d $(PANDAS3) || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--target $(PANDAS3) 'pandas>=3'
	$(call timed,make pandas3,PYTHONPATH=$(PANDAS3) $(BIN)/python -m pytest -q -n 2 \
		tests/facade/test_xarray.py tests/facade/test_dask.py tests/virtual)

check: lint types layers ## Style, types and layers

lint: $(READY) ## Style: ruff
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(READY) ## Format the code and apply the fixes of ruff
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(READY) ## Types: mypy, strict
	$(BIN)/mypy

layers: $(READY) ## Layers: import-linter
	$(BIN)/lint-imports

hooks: $(READY) ## Run ruff, mypy and import-linter on every git commit
	$(BIN)/pre-commit install

bench: $(READY) ## Speed, memory and size relative to Icechunk 2.x and 1.x
	@folder=$$(mktemp -d); \
	$(BIN)/python bench/run.py $$folder/a $(BENCH); first=$$?; \
	$(OLDEST) bench/run.py $$folder/b --no-spark $(BENCH); second=$$?; \
	rm -rf $$folder; exit $$((first | second))

fuzz: $(READY) ## Run the decoders on damaged files, for a minute
	$(BIN)/python fuzz/fuzz_formats.py --seconds 60

stress: $(READY) ## Writers, maintenance and Icechunk, killed at random, for a minute on S3
	$(BIN)/python fuzz/stress.py --seconds 60 --place s3

wheel: $(READY) ## Build the wheel and test it in fresh environments
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@for extras in "" "[all]"; do \
		folder=$$(mktemp -d) && $(BIN)/python -m venv $$folder && \
		$$folder/bin/python -m pip install --quiet --disable-pip-version-check "$$(ls dist/*.whl)$$extras" && \
		(cd $$folder && bin/python $(CURDIR)/tests/support/try_wheel.py $(CURDIR)/README.md) || exit 1; \
		rm -rf $$folder; \
	done

clean: ## Remove environments, caches and builds
	rm -rf $(VENV) .venv-oldest .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis \
		.coverage dist
