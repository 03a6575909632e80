# The desk's entrance: every target sets up .venv by itself on a fresh machine, and the commands behind it are `fssl`'s.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PROFILE ?= laptop# demo, laptop, gpu or paper
ARGS ?=# more arguments for fssl, such as --seeds 16
PYTHON ?=# the Python that makes .venv; found by itself when empty

LOCK := .lock/requirements.txt
STAMP := .venv/.installed
BIN := .venv/bin

# A file's tests stay together: they share what is slow to set up. One file more than there are cores, since many tests
# wait for processes of their own. ARGS="-n 0" runs them one after another.
SIDE_BY_SIDE = -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --dist loadfile --no-loadscope-reorder

.PHONY: help demo test test-all soak audit lint report clean lock setup FORCE

help: ## this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { printf "  make %-24s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  for example: make reproduce-ssfl-tab2 PROFILE=gpu ARGS='--seeds 16'"

# Nine seeds can decide each main claim; the other claims on these cells need 16 or 24, as their lines say.
demo: $(STAMP) ## verdicts on the main claims of SSFL's Table 2, on handwritten digits, 9 seeds, in minutes on two cores
	$(BIN)/fssl reproduce ssfl/tab2 --profile demo --main --seeds 9 $(ARGS)

test: $(STAMP) ## the tests, several files at a time; without the slow ones
	$(BIN)/python -m pytest -q -m 'not slow' $(SIDE_BY_SIDE) $(ARGS)

test-all: $(STAMP) ## all tests, also the slow ones: agents and clusters that are killed (about 20 minutes)
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) $(ARGS)

# Figures also go to the file that --json names.
soak: $(STAMP) ## kills of every method under every engine, each resumed, also at the default interval (about an hour)
	$(BIN)/python -m tests.soak.kills $(ARGS)
	$(BIN)/python -m tests.soak.kills --default-interval --kills-each 2 $(ARGS)

# --strict: a package that cannot be looked up is an error, too. pip-audit comes unlocked and stays in a folder of its
# own; nothing that it audits is installed.
audit: $(STAMP) ## known vulnerabilities of what the lock pins (asks the package index; makes .audit)
	$(BIN)/python -m venv .audit
	.audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	.audit/bin/pip-audit --strict --disable-pip --require-hashes --requirement $(LOCK) $(ARGS)

lint: $(STAMP) ## style, types, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The first dash parts the paper from the item: reproduce-ssfl-tab2 is ssfl/tab2, reproduce-ssfl all of ssfl.
reproduce-%: $(STAMP) FORCE ## one item: PAPER-ITEM (ssfl-tab2), PAPER, or all
	item='$*'; $(BIN)/fssl reproduce "$${item/-//}" --profile $(PROFILE) $(ARGS)

report: $(STAMP) ## the site under reports/site from the records
	$(BIN)/fssl report $(ARGS)

setup: $(STAMP) ## only make .venv (about 7 GB: torch brings its accelerator libraries)

clean: ## remove .venv, caches and the built site; records stay
	rm -rf .venv .audit .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info reports/site
	find benchmark sweeps reports tests -name __pycache__ -type d -prune -exec rm -rf {} +

lock: ## write the lock anew after a change of pyproject.toml (needs uv on the PATH; ARGS=--upgrade raises versions)
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --fork-strategy fewest \
	    --no-emit-index-url --no-annotate --no-header --quiet --output-file $(LOCK) $(ARGS)

# Last of all: a set-up that was interrupted leaves no stamp, and is taken up again by the next make.
$(STAMP): $(LOCK) pyproject.toml
	@if ! $(BIN)/python -c '' 2>/dev/null; then \
	    supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; \
	    for python in $(or $(PYTHON),python3.11 python3.12 python3.13 python3); do \
	        if "$$python" -c "$$supported" 2>/dev/null; then found="$$python"; break; fi; \
	    done; \
	    if [[ -z "$${found:-}" ]]; then \
	        echo "error: no Python 3.11, 3.12 or 3.13 found (tried $(or $(PYTHON),python3.11 python3.12 python3.13 \
	python3)); install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; \
	    fi; \
	    echo "making .venv with $$("$$found" --version)"; \
	    "$$found" -m venv --clear .venv; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)
