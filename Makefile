# `make demo` and `make test` set up .venv on first use and reuse it afterwards.
PYTHON ?= python3
BIN := .venv/bin
# One thread per process: two torch processes on two cores fight otherwise.
WORKERS ?= 2

.PHONY: demo test tables setup clean

demo: setup
	$(BIN)/aggmatch demo

test: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q

tables: setup
	$(BIN)/python results/tables.py

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,track,export]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
