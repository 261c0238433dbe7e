# Three targets are for everyone:
#
#   make demo   trains the digits example and writes its picture
#   make test   lints, checks types, and tests the wheel that users would install
#   make docs   builds the site, build/site/index.html
#
# They make .venv when there is none and need only Python 3.11 or later, with pip.
# `make test PYTHON=python3.12` chooses the Python that .venv is made of.

PYTHON ?= python3
VENV ?= .venv
# xdist would begin files with one long test last, and one core would wait for the other.
PYTEST_ARGS ?= -n auto --dist loadfile --no-loadscope-reorder

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
WHEEL = $$(echo dist/declax-*.whl)

# Folders are listed too: their time changes when a file is removed.
SOURCES := $(shell find src -not -name '__pycache__' -not -name '*.pyc')
LINTED := $(wildcard src tests examples benchmarks stubs docs)
TYPED := $(foreach folder,src examples tests/typing benchmarks,$(if $(shell find $(folder) -name '*.py' 2>/dev/null),$(folder)))

# The tests must see the installed wheel, never the sources next to them.
unexport PYTHONPATH

.PHONY: help demo docs test lint types pyright wheel clean
.NOTPARALLEL:
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.has-examples $(VENV)/.has-wheel
	$(BIN)/python examples/digits/train.py

test: $(VENV)/.has-dev $(VENV)/.has-wheel lint types
	DECLAX_TESTED_AS=wheel $(BIN)/python -m pytest $(PYTEST_ARGS)

docs: $(VENV)/.has-docs $(VENV)/.has-wheel
	$(BIN)/python -m sphinx --builder html --fail-on-warning --quiet docs build/site

lint: $(VENV)/.has-dev
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)

types: $(VENV)/.has-dev $(VENV)/.has-wheel
	$(BIN)/mypy --strict $(TYPED)

pyright: $(VENV)/.has-dev
	$(BIN)/pyright --pythonpath $(BIN)/python

wheel: dist/.built

clean:
	rm -rf $(VENV) .venv-newest dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The stamps below make a second run cheap: pip is called only when something it installs has changed.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "declax needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	       "Name another: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

dist/.built: $(VENV)/.made $(SOURCES) pyproject.toml README.md LICENSE
	rm -rf dist && mkdir dist
	$(PIP) wheel --quiet --no-deps --wheel-dir dist .
	@touch $@

$(VENV)/.has-examples: pyproject.toml $(VENV)/.made | dist/.built
	$(PIP) install --quiet "$(WHEEL)[examples]"
	@touch $@

$(VENV)/.has-dev: pyproject.toml $(VENV)/.made | dist/.built
	$(PIP) install --quiet "$(WHEEL)[dev,bench,examples,treescope]"
	@touch $@

$(VENV)/.has-docs: pyproject.toml $(VENV)/.made | dist/.built
	$(PIP) install --quiet "$(WHEEL)[docs]"
	@touch $@

$(VENV)/.has-wheel: dist/.built
	$(PIP) install --quiet --no-deps --force-reinstall $(WHEEL)
	@touch $@
