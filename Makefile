# Two commands are enough: `make demo` and `make test`. Both set up what they need.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
PACKAGES := core/pyproject.toml $(wildcard plugins/*/pyproject.toml)

.PHONY: setup demo test lint new-plugin bench

setup: $(STAMP)

$(STAMP): requirements-dev.txt $(PACKAGES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check hatchling editables
	$(BIN)/python -m pip install --no-build-isolation --disable-pip-version-check -r requirements-dev.txt
	touch $@

demo: setup
	$(BIN)/plugrl train examples/quickstart.yaml

test: setup
	$(BIN)/python -m pytest -q -m "not slow and not gpu"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

new-plugin: setup
	$(BIN)/plugrl plugins new platform --no-input --vendor $(VENDOR) --output plugins with_ci=no

bench: setup
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/grpo_step.py
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/planner.py
	$(BIN)/python -m pytest -q -m slow
