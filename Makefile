PYTHON = .venv/bin/python

.PHONY: help install test lint format types docs bench

help:  ## these lines
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

install:  ## make .venv, with all that development needs
	python3 -m venv .venv
	$(PYTHON) -m pip install --editable '.[dev,docs]'

test:  ## run the tests on all cores
	$(PYTHON) -m pytest -n auto

lint:  ## style, and the order of layers
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	.venv/bin/lint-imports

format:  ## fix what can be fixed without thought
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

types:  ## pyright, strict
	$(PYTHON) -m pyright --pythonpath $(PYTHON)

docs:  ## the documentation as a site in build/docs; a broken link is an error
	$(PYTHON) -m sphinx -q -W --keep-going -c docs -d build/doctrees . build/docs

bench:  ## how long things take; writes speed.json
	$(PYTHON) -m experiments.speed --json speed.json
