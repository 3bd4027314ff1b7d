# Two commands for newcomers: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/pip --disable-pip-version-check

.PHONY: demo test test-slow lint bench docs-results screenshots clean

$(VENV)/.installed: pyproject.toml setup.py constraints.txt $(wildcard engines/csrc/*)
	@echo "installing into $(VENV): torch and others, about 1 GB the first time"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(PIP) install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

demo: $(VENV)/.installed
	$(VENV)/bin/kvtui

lint: $(VENV)/.tested
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test: lint
	$(VENV)/bin/kvtui models --fetch smollm2-135m
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest -n 2

test-slow: $(VENV)/.tested
	$(VENV)/bin/pytest -m slow

screenshots: $(VENV)/.tested
	$(VENV)/bin/python -m screenshots.take

bench: $(VENV)/.installed
	$(VENV)/bin/python -m benchmarks.decode

docs-results: $(VENV)/.tested
	$(VENV)/bin/python -m docs.render

clean:
	rm -rf $(VENV) build *.egg-info engines/*.so
