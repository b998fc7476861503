PYTHON = .venv/bin/python
# Since Python 3.12 the interpreter itself can tell which lines run, at next to no cost.
COVERAGE_CORE = $(shell $(PYTHON) -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")')

.PHONY: help install quick test launch-tests launch-golden slow coverage lint format types docs pictures charts wheel wheel-test bench

help:  ## these lines
	@awk -F ':.*## *' '/^[a-z-]+:.*##/ { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install:  ## make .venv, with all that development needs
	python3 -m venv .venv
	$(PYTHON) -m pip install --editable '.[dev,docs]'

quick:  ## one quick case of every test but laws and validation, with few examples: half a minute
	HYPOTHESIS_PROFILE=quick $(PYTHON) -m pytest -n auto -q -m "not slow and not not_quick" --one-case \
		--ignore=tests/laws --ignore=tests/validation --ignore=tests/fuzz

test:  ## the tests, and a sample of the slow ones, on all cores
	$(PYTHON) -m pytest -n auto

launch-tests:  ## what the parsers of frameworks make of launch files, in an environment of its own
	bash tests/launch/real/install.sh build/launch $(firstword $(shell command -v python3.11 python3))
	DS_ACCELERATOR=cpu PYTHONPATH="$(CURDIR):build/launch/megatron" build/launch/bin/python -m pytest \
		-m "" -p no:cacheprovider tests/launch/real

launch-golden:  ## write the golden launch files again; read every line that changes
	$(PYTHON) -m tests.launch.golden

slow:  ## all slow tests; DISTIR_FUZZ=10 runs ten times as many shares of random laws
	$(PYTHON) -m pytest -n auto -m slow

coverage:  ## which lines the tests run: a table, and pages in build/coverage
	COVERAGE_CORE=$(COVERAGE_CORE) $(PYTHON) -m pytest -n auto --cov --cov-report=term --cov-report=html

lint:  ## style, order of layers, workflows: the hooks of .pre-commit-config.yaml, without types
	SKIP=pyright PATH="$(CURDIR)/.venv/bin:$$PATH" $(PYTHON) -m pre_commit run --all-files

format:  ## fix what can be fixed without thought
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

types:  ## pyright, strict
	$(PYTHON) -m pyright --pythonpath $(PYTHON)

docs:  ## the documentation as a site in build/docs; a broken link is an error
	$(PYTHON) -m sphinx -q -W --keep-going -c docs -d build/doctrees . build/docs

pictures:  ## what reports and MLflow look like, in docs/static; needs Chromium
	$(PYTHON) -m docs.pictures

charts:  ## the charting library as reports carry it, from npm: what charts/index.js names; needs Node.js
	rm -rf build/charts && mkdir -p build && cp -r autotune/assets/charts build/charts
	cd build/charts && npm ci --ignore-scripts --no-audit --no-fund && npx esbuild index.js --bundle --minify \
		--format=iife --global-name=echarts --target=es2020 --legal-comments=eof \
		--banner:js="$$(cat banner.txt)" --outfile=echarts.min.js
	cp build/charts/echarts.min.js autotune/assets/echarts.min.js
	cp build/charts/node_modules/zrender/LICENSE autotune/assets/echarts-LICENSE-zrender.txt

wheel:  ## build dist/*.whl, and dist/*.tar.gz that it is built from
	rm -rf dist
	$(PYTHON) -m build

wheel-test: wheel  ## install the wheel in an environment of its own, and run it there
	rm -rf build/wheel
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/pip install --quiet dist/*.whl
	build/wheel/bin/python .ci/check_installed.py

bench:  ## how long things take; writes speed.json
	$(PYTHON) -m experiments.speed --json speed.json
