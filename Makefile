# `make demo`, `make test` and `make docs` set up .venv on first use and reuse it afterwards.
PYTHON ?= python3
BIN := .venv/bin
# One thread per process: two torch processes on two cores fight otherwise.
WORKERS ?= 2
# Another torch than the pinned one: make test TORCH='torch==2.11.*'
TORCH ?=

.PHONY: demo test faults docs tables dist setup clean

demo: setup
	$(BIN)/aggmatch demo

test: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(MAKE) docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q

# Kills, failing disks, damaged files and hostile inputs, thousands of each: about an hour.
faults: setup
	OMP_NUM_THREADS=1 PYTHONPATH=src:. $(BIN)/python -m tests.faults

docs: setup
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --fresh-env docs docs/_build/html

tables: setup
	$(BIN)/python results/tables.py

dist: setup
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	grep -vE '$(if $(TORCH),^(torch|triton)==,^$$)' constraints.txt > .venv/constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c .venv/constraints.txt -e '.[dev,docs,track,export,pretrained,page,cluster]' $(if $(TORCH),'$(TORCH)')
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache docs/_build
