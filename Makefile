# Two commands set up everything: `make demo` and `make test`. Both make the environment in .venv first, once.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-fast lint browser clean

demo: $(VENV)/installed
	$(BIN)/sbpipe run configs/demo.toml --run-dir runs/demo --overwrite --no-report
	$(BIN)/sbpipe report runs/demo

test: lint browser
	$(BIN)/python -m pytest -n 2 --dist worksteal

# For the inner loop: what starts no process and no browser and trains no longer than a moment.
test-fast: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

lint: $(VENV)/installed
	$(BIN)/ruff format --check sbpipe tests examples
	$(BIN)/ruff check sbpipe tests examples
	$(BIN)/mypy

# The pages are tested in a real browser: Debian's Chromium, installed where that can be done without asking.
browser:
	@command -v chromium > /dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && apt-get update -qq && apt-get install -y -qq chromium > /dev/null; } \
	  || echo "no Chromium here (apt-get install chromium): the tests of pages are skipped"

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
