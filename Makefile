# Two commands set up everything: `make demo` and `make test`. Both make the environment in .venv first, once.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Two simulated accelerators, in a run of their own: where they are, `auto` takes them (tests/simulated/README.md).
SIMULATED := PYTHONPATH=$(CURDIR)/tests/simulated/plugin

# Hundreds of processes that tests start read the package compiled, also where the environment would have each compile it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test suite test-fast test-simulated lint style types browser sbom audit clean

demo: $(VENV)/installed
	$(BIN)/sbpipe run configs/demo.toml --run-dir runs/demo --overwrite --no-report
	$(BIN)/sbpipe report runs/demo

# mypy takes one core, beside the tests.
test: style browser
	+$(MAKE) --no-print-directory -j 2 types suite

suite: $(VENV)/installed
	$(BIN)/python -m pytest -n 3 --dist worksteal
	$(SIMULATED) $(BIN)/python -m pytest -n 3 --dist worksteal tests/simulated tests/machine/test_gpu.py tests/weights

# For the inner loop: what starts no process and no browser and trains no longer than a moment.
test-fast: $(VENV)/installed
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow"

# The whole suite where accelerators are: a test that assumes there is none fails here. As long as `make test` again.
test-simulated: $(VENV)/installed
	$(SIMULATED) $(BIN)/python -m pytest -n 2 --dist worksteal

lint: style types

style: $(VENV)/installed
	$(BIN)/ruff format --check sbpipe tests docker deploy examples
	$(BIN)/ruff check sbpipe tests docker deploy examples

types: $(VENV)/installed
	$(BIN)/mypy

# The pages are tested in a real browser: Debian's Chromium, installed where that can be done without asking.
browser:
	@command -v chromium > /dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && apt-get update -qq && apt-get install -y -qq chromium > /dev/null; } \
	  || echo "no Chromium here (apt-get install chromium): the tests of pages are skipped"

# What is installed, by name, version and licence. The image has its own in /usr/share/sbpipe/sbom.cdx.json.
sbom: $(VENV)/installed
	mkdir -p build
	$(BIN)/python docker/sbom.py --no-system > build/sbom.cdx.json

# Known holes in what is installed. The tool lives apart from what it looks at; --strict: what could not be looked up is a failure.
audit: $(VENV)/installed build/audit/bin/pip-audit
	$(BIN)/python -m pip check
	$(BIN)/python -m pip freeze --exclude-editable > build/frozen.txt
	build/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement build/frozen.txt

build/audit/bin/pip-audit:
	$(PYTHON) -m venv build/audit
	build/audit/bin/pip install --quiet pip-audit

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
