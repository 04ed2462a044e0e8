# Everything goes into .venv; `make quickstart` and `make test` need git, make and python3.11 with venv, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?= -n 2 --dist loadgroup
CONTRACT_ARGS ?= -n 6 --dist loadgroup
QUICKSTART_ROOT ?= build/quickstart
REHEARSE_ROOT ?= build/rehearse

.DEFAULT_GOAL := help
.PHONY: help install quickstart test lint unit faults campaigns integration contract contract-mutations slurm-24.11 \
	rehearse bench bench-checkpoint stagger-storm clean

help:
	@echo "make quickstart   the main job on the embedded fake Slurm, interrupted and compared with the uninterrupted run"
	@echo "make test         lint, types, import layers, unit, fake and real-Slurm end-to-end tests"
	@echo "make lint | unit | contract | integration   parts of make test"
	@echo "make slurm-24.11  Debian 13's Slurm in build/, for the contract's second real one; contract-mutations breaks the fake"
	@echo "make campaigns    crash points, storage errors, reordering, power cuts and chaos, long form"
	@echo "make stagger-storm  turns at shared storage while their holders are killed and frozen"
	@echo "make bench-checkpoint  saving and loading against the machine's limits and torch's own ways"
	@echo "make rehearse     every rehearsal of the quickstart, then of jobs with one mistake each (half an hour)"
	@echo "make bench        every benchmark, short form"

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

quickstart: install
	@rm -rf '$(QUICKSTART_ROOT)'
	$(BIN)/rlaunch submit configs/quickstart.yaml --verify --root '$(QUICKSTART_ROOT)'

test: lint unit faults contract integration

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports

unit: install
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests/unit

# Minutes in the short form. FORM=long takes hours; PARTS names some of the campaigns.
FORM ?= short
faults: install
	$(BIN)/python -m pytest tests/faults
	$(BIN)/python -m tests.faults.campaigns --form $(FORM) $(PARTS)

campaigns: install
	$(BIN)/python -m tests.faults.campaigns --form long $(PARTS)

# Its tests wait for Slurm more than they compute. On a user's machine a Slurm that cannot be had is left out by name.
contract: install
	@$(MAKE) --no-print-directory slurm-24.11 || test -z "$$CI"
	$(BIN)/python -m pytest $(CONTRACT_ARGS) tests/contract

# Breaks the fake on purpose and names the tests that notice: two minutes.
contract-mutations: install
	$(BIN)/python -m tests.contract.mutations

# Debian 13's Slurm in a folder beside the installed one: half a minute, nothing is installed.
slurm-24.11:
	@$(PYTHON) slurm/testcluster/testcluster_release.py build/slurm-24.11

integration: install
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests/integration

# Three minutes on a quiet machine: sixty-four processes take turns under SIGKILL and SIGSTOP, then runs side by side.
stagger-storm: install
	$(BIN)/python -m tests.faults.storm --seconds 120
	$(BIN)/python -m tests.faults.side_by_side

# Ten minutes and 20 GB of writes into build/ on a quiet machine; every figure beside the machine's own limit.
bench-checkpoint: install
	$(BIN)/python -m benchmarks.checkpoint

# Half an hour on two quiet cores; the first line alone is the quickstart under every scenario.
rehearse: install
	$(BIN)/rlaunch rehearse configs/quickstart.yaml --all --root '$(REHEARSE_ROOT)' --html '$(REHEARSE_ROOT).html'
	$(BIN)/python -m pytest tests/rehearsals

bench: install
	@for name in startup fake step_loop crash interval simulate stagger report; do $(BIN)/python -m benchmarks.$$name --quick || exit 1; done

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache *.egg-info
