# Two commands for a fresh machine: `make train` and `make test`. Everything lives in .venv; `make clean` removes it.
PYTHON ?= python3
SOAK ?= 20min
# Many tests wait for something that is killed, stopped or silent: two at once, each with a half of its own.
PAIR := -n 2 --dist worksteal
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help train test quick lint bench soak chaos engines clean

help:
	@echo "make train   set up .venv, train the built-in digits on 2 workers, show the result"
	@echo "make test    set up .venv, run the whole test suite (make quick: without the slow tests)"
	@echo "make lint    ruff, pyright, import-linter"
	@echo "make soak    SOAK=20min of training on servers while workers and servers are killed at random"
	@echo "make bench   the figures of docs/measured.md, measured here"
	@echo "make chaos   kill, stop and cut everything a job has, 120 times (root, Linux; some twenty minutes)"
	@echo "make engines all that is tested on real MPI, Slurm, Grid Engine and Ray (root, Linux; some ten minutes)"

train: $(READY)
	@$(BIN)/shoal train digits -n 2

test: $(READY)
	@$(BIN)/python -m pytest $(PAIR)

quick: $(READY)
	@$(BIN)/python -m pytest $(PAIR) -m "not slow"

lint: $(READY)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright && $(BIN)/lint-imports

bench: $(READY)
	@set -e; for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file; done

chaos: $(READY)
	@$(BIN)/python tests/clusters/chaos.py --cases 120

engines: $(READY)
	@SHOAL_ENGINES=all SHOAL_TEST_WORKERS=4 SHOAL_NOTES=engines.txt $(BIN)/python -m pytest -rs tests/clusters/test_mpi.py \
	  tests/clusters/test_slurm.py tests/clusters/test_sge.py tests/clusters/test_ray.py

soak: $(READY)
	@SHOAL_SOAK=$(SOAK) $(BIN)/python -m pytest tests/kvstore/test_soak.py

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Shoal needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	@echo "Setting up .venv (once; with torch for CUDA this downloads some 3 GB and takes a few minutes) …"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
