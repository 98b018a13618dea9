# Two commands set up everything: `make demo` and `make test`. Both make the environment in .venv first, once.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint clean

demo: $(VENV)/installed
	$(BIN)/sbpipe run configs/demo.toml

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/installed
	$(BIN)/ruff format --check sbpipe tests
	$(BIN)/ruff check sbpipe tests
	$(BIN)/mypy

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
