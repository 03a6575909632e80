# Entry points: every target creates .venv if necessary and then calls `fssl`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PROFILE ?= laptop# demo, laptop, gpu or paper
ARGS ?=# more arguments for fssl, such as --seeds 16
PYTHON ?=# the Python that makes .venv; found by itself when empty
TORCH ?= $(patsubst .venv/.run-%,%,$(firstword $(wildcard .venv/.run-*)))# cpu, cu126, ...: a build of torch; .venv stays so

BIN := .venv/bin
RUN := .venv/.run$(TORCH:%=-%)
DEV := .venv/.dev$(TORCH:%=-%)

# A file's tests stay together: they share what is slow to set up. One file more than there are cores, since many tests
# wait for processes of their own. ARGS="-n 0" runs them one after another.
SIDE_BY_SIDE = -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --dist loadfile --no-loadscope-reorder

.PHONY: help demo test test-all test-oldest soak audit lint report clean lock setup setup-dev FORCE

help: ## this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { printf "  make %-24s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  for example: make reproduce-ssfl-tab2 PROFILE=gpu ARGS='--seeds 16'"

# Nine seeds can decide each primary claim; the other claims on these cells need 16 or 24, as their lines say.
demo: $(RUN) ## verdicts on the primary claims of SSFL's Table 2, on handwritten digits, 9 seeds, in minutes on two cores
	@echo 'demo: 45 short runs on scikit-learn'"'"'s digits, about 2 minutes on two idle cores (a second call trains nothing)'
	@$(BIN)/fssl reproduce ssfl/tab2 --profile demo --main --seeds 9 $(ARGS)

test: $(DEV) ## the tests, several files at a time; without the slow ones
	$(BIN)/python -m pytest -q -m 'not slow' $(SIDE_BY_SIDE) $(ARGS)

test-all: $(DEV) ## all tests, also the slow ones: agents and clusters that are killed (about 30 minutes)
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) $(ARGS)

test-oldest: ## the tests with the oldest versions that pyproject.toml allows (makes .oldest, 7 GB)
	@test -x .oldest/bin/python || $(or $(PYTHON),python3.11) -m venv .oldest
	$(if $(UV),uv pip install --quiet --python .oldest/bin/python,.oldest/bin/python -m pip install --quiet) \
	    -r <(.oldest/bin/python .package/oldest.py) 'setuptools>=77'
	.oldest/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	.oldest/bin/python -m pytest -q -m 'not slow' $(SIDE_BY_SIDE) $(ARGS)

# Figures also go to the file that --json names.
soak: $(DEV) ## many launchers on one folder, killed and stopped at random, also at the default interval of saves
	$(BIN)/python -m tests.soak.chaos $(ARGS)
	$(BIN)/python -m tests.soak.chaos --default-interval $(ARGS)

# --strict: a package that cannot be looked up is an error, too. pip-audit comes unlocked and stays in a folder of its
# own; nothing that it audits is installed.
audit: $(RUN) ## known vulnerabilities of what the locks pin (asks the package index; makes .audit)
	$(BIN)/python -m venv .audit
	.audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	.audit/bin/pip-audit --strict --disable-pip --require-hashes --requirement .lock/dev.txt $(ARGS)

lint: $(DEV) ## style, types, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.style
	$(BIN)/mypy
	$(BIN)/lint-imports

# The first dash separates the paper from the name of the table or figure: reproduce-ssfl-tab2 is ssfl/tab2, and
# reproduce-ssfl all of ssfl.
reproduce-%: $(RUN) FORCE ## one table or figure: PAPER-NAME (ssfl-tab2), PAPER, or all
	item='$*'; $(BIN)/fssl reproduce "$${item/-//}" --profile $(PROFILE) $(ARGS)

report: $(RUN) ## the site under reports/site from the records
	$(BIN)/fssl report $(ARGS)

setup: $(RUN) ## only make .venv (about 5 GB: torch brings its CUDA libraries; TORCH=cpu leaves them out, TORCH=cu126 is for older drivers)

setup-dev: $(DEV) ## also what tests, checks and Ray need (0.5 GB more)

clean: ## remove .venv, caches and the built site; records stay
	rm -rf .venv .audit .oldest .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info reports/site
	find benchmark sweeps reports tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Without triton, 1 GB: torch goes without it, and nothing here calls torch.compile.
COMPILE = uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --fork-strategy fewest \
    --no-emit-index-url --no-emit-package triton --no-annotate --no-header --quiet

lock: ## write both locks anew after a change of pyproject.toml (needs uv on the PATH; ARGS=--upgrade raises versions)
	$(COMPILE) --extra dev --output-file .lock/dev.txt $(ARGS)
	$(COMPILE) --extra postgres --constraints .lock/dev.txt --output-file .lock/run.txt

ifneq ($(shell grep -xE 'cpu|cu[0-9]+|' <<< '$(TORCH)' || echo wrong),$(TORCH))
$(error TORCH is cpu or a build for CUDA such as cu126 or cu130, not $(TORCH); `fssl doctor` names the one that fits)
endif

# With TORCH, torch and torchvision come from elsewhere, without hashes, and the lock's libraries of CUDA are left out.
UV := $(shell command -v uv)
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
NOT_LOCKED := $(if $(TORCH),^(torch|torchvision)==|^(cuda|nvidia)-,^$$)
LOCKED = awk '/^[^ ]/ { skip = /$(NOT_LOCKED)/ } !skip' $<
# uv reads no settings of pip, so that pip is asked if uv finds no package.
FROM_LOCK = install --no-deps --require-hashes -r
WITH_UV = $(LOCKED) | uv pip $(FROM_LOCK) - --quiet --python $(BIN)/python
INSTALL = $(if $(UV),$(WITH_UV) || )$(PIP) $(FROM_LOCK) <($(LOCKED))
WITH_CUDA := 5 GB, about 4 minutes (make setup TORCH=cpu: 1.6 GB, without CUDA)
WITHOUT_CUDA := 1.6 GB, about 2 minutes
TO_INSTALL = $(if $(TORCH:cpu=),$(TORCH)'s libraries are there; about 2 minutes,$(if $(TORCH),$(WITHOUT_CUDA),$(WITH_CUDA)))

# Last of all: a set-up that was interrupted leaves no stamp, and is taken up again by the next make.
$(RUN): .lock/run.txt pyproject.toml
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
ifneq ($(TORCH),)
	@$(BIN)/python .package/torch_build.py $(TORCH) $<
endif
	@echo "installing into .venv, once: $(TO_INSTALL)"
	@$(INSTALL)
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@rm -f .venv/.run* .venv/.dev* && touch $@

$(DEV): .lock/dev.txt $(RUN)
	@echo 'installing what tests and checks need into .venv, once: 0.5 GB, about a minute'
	@$(INSTALL)
	@touch $@
