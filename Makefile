# `make demo` shows what vitrail does, `make test` whether it does it; both work on a fresh machine with Python 3.11+.
PYTHON ?= python3
# One more than there are cores, since tests wait for processes and pages; up to 4: each takes about 2.5 GB.
WORKERS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); [ "$$cores" -lt 4 ] && echo $$((cores + 1)) || echo 4)

VENV := .venv
PY := $(VENV)/bin/python
VITRAIL := $(VENV)/bin/vitrail
CONSTRAINTS := constraints/py311-torch2.12.txt
RAY_SERVE := .ray_serve
INSTALLED := $(VENV)/.installed
BENCHMARKS := benchmarks.libraries $(patsubst benchmarks/%.py,benchmarks.%,$(wildcard benchmarks/*.py))

# One thread for each test process: small networks on shared cores are slower with more. Some hundred processes are
# started, which need not compile the sources each.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(PY) -m pytest
# Files in their order, so that the last ones are short.
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help install demo test gpu soak lint types docs check bench bench-quick lessons notebooks pages clean
.DEFAULT_GOAL := help

help:
	@echo "make demo     install, then train, evaluate and explain a small network on handwritten digits"
	@echo "make test     install, then the test suite (WORKERS=$(WORKERS) processes)"
	@echo "make gpu      the tests of a GPU, which make test does not use"
	@echo "make check    lint, types, docs and test: all that must be green before a commit"
	@echo "make install  .venv with everything in it (PYTHON=$(PYTHON) makes it)"
	@echo "make lessons  run the lessons; make pages writes their pages, pictures and notebooks; make notebooks runs these"
	@echo "make soak     the long tests, one to two hours on two cores: before a release, see CONTRIBUTING.md"
	@echo "make bench-quick  the same network in timm, torchvision, transformers and vitrail: about 90 seconds"
	@echo "make bench    the benchmarks; make clean throws caches away (runs stay)"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "vitrail needs Python 3.11 or newer, '$(PYTHON)' is not"; \
		echo "try: make install PYTHON=python3.11"; exit 1; }
	@echo "installing into $(VENV): the first time takes some minutes and about 5 GB"
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --no-input --disable-pip-version-check -q -c $(CONSTRAINTS) pip setuptools hatchling editables
	$(PY) -m pip install --no-input --disable-pip-version-check -q -c $(CONSTRAINTS) --no-build-isolation -e ".[dev]"
	@touch $@

# Every call gets a fresh folder: runs/demo, runs/demo-2, ... Nothing that is there is touched.
demo: install
	@set -eu; run=runs/demo; n=2; \
	while [ -e "$$run" ]; do run="runs/demo-$$n"; n=$$((n + 1)); done; \
	$(VITRAIL) train digits --out "$$run"; \
	answer=$$($(VITRAIL) evaluate "$$run" --json); \
	$(VITRAIL) explain "$$run" digits --count 4 --method generic_attention --out "$$run/explanation.html"; \
	echo; printf '%s' "$$answer" | $(PY) -c 'import json, sys; answer = json.load(sys.stdin); \
	print("test accuracy  {accuracy:.2%} of {images} images".format(**answer))'; \
	echo "the run        $$run/run.html"; \
	echo "explanations   $$run/explanation.html"

test: install
	$(PYTEST) $(SPREAD) --durations=25

# Other tests are shown none: they hold answers against those of the processor.
gpu: install
	CUDA_VISIBLE_DEVICES=$${CUDA_VISIBLE_DEVICES:-0} $(PYTEST) tests/test_gpu.py

# More than the extra `ray` has, and beside the environment: with it, Ray starts more processes in all other tests.
$(RAY_SERVE): $(CONSTRAINTS)
	rm -rf $@
	$(PY) -m pip install --no-input --disable-pip-version-check -q -c $(CONSTRAINTS) --target $@ "ray[serve]"

# The long tests of one file go to whichever process is free. pytest leaves with 5 when no test is marked: no failure.
soak: install $(RAY_SERVE)
	$(PYTEST) -n $(WORKERS) --dist worksteal -m soak --timeout 3600 --durations=25 || test $$? -eq 5

lint: install
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

types: install
	$(VENV)/bin/pyrefly check

docs: install
	$(PYTEST) -q tests/test_docs.py

check: lint types docs test

bench: install
	@test -n "$(BENCHMARKS)" || { echo "benchmarks/ holds no script"; exit 1; }
	@set -e; for benchmark in $(BENCHMARKS); do echo "== $$benchmark"; $(PY) -m $$benchmark; done

bench-quick: install
	$(PY) -m benchmarks.libraries --quick

# LESSONS="d0 d3" runs these only.
lessons: install
	$(PY) lessons/run.py $(LESSONS)

# The pages in docs/lessons and the notebooks, with what the cells print and draw, and docs/gallery.md.
pages: install
	$(PY) lessons/run.py --pages $(LESSONS)

# Runs the notebooks in Jupyter's kernel, which needs more than the suite does (the extra `notebooks`); with what they
# print and draw they lie in build/notebooks. `make pages` makes them.
notebooks: install
	$(PY) -m pip install --no-input --disable-pip-version-check -q -c $(CONSTRAINTS) --no-build-isolation -e ".[notebooks]"
	OMP_NUM_THREADS=1 $(PY) -m nbconvert --to notebook --execute --output-dir build/notebooks lessons/*.ipynb

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis .benchmarks
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
