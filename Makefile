# Two commands do everything: `make demo` and `make test`; `make fuzz` is for the night. Needs Python 3.11-3.13 and make, nothing else.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	$$p -c '$(SUPPORTED)' 2>/dev/null && echo $$p && break; done)
DEMO_SEED ?= 0
FUZZ_EXAMPLES ?= 10000
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: install install-dev demo test fuzz check clean

install: .venv/.installed

install-dev: .venv/.installed-dev

.venv/bin/python:
	@if [ -z "$(PYTHON)" ]; then echo "qdq needs Python 3.11, 3.12 or 3.13; install one, or name it: make PYTHON=/path/to/python"; exit 2; fi
	@$(PYTHON) -c '$(SUPPORTED)' >/dev/null 2>&1 || { \
		echo "$(PYTHON) is no Python 3.11, 3.12 or 3.13 that runs; name one that does: make PYTHON=/path/to/python"; exit 2; }
	@$(PYTHON) -m venv .venv >/dev/null 2>&1 || { rm -rf .venv; \
		name=python$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get -qq update >/dev/null 2>&1; apt-get -qq install -y $$name >/dev/null 2>&1; $(PYTHON) -m venv .venv >/dev/null 2>&1 && exit 0; \
			rm -rf .venv; fi; \
		echo "Python's venv module is missing; install the package $$name and run make again."; exit 2; }

.venv/.installed: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

.venv/.installed-dev: .venv/.installed
	$(PIP) --editable '.[dev]'
	@touch $@

demo: .venv/.installed
	$(BIN)/qdq demo --seed $(DEMO_SEED)

test: .venv/.installed-dev check
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --durations 20

fuzz: .venv/.installed-dev
	QDQ_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest tests/fuzz --numprocesses 2 -rP

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

clean:
	rm -rf .venv demo .fuzz .hypothesis .ruff_cache
