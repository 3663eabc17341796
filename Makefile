# `make test` and `make demo` work on a new machine: the first call makes .venv.
PYTHON ?= python3
VENV := .venv
CONSTRAINTS := constraints.txt
# `make test TORCH=2.7.1` tests the library with another torch, in its own environment
ifdef TORCH
VENV := .venv-$(TORCH)
CONSTRAINTS := $(VENV)/constraints.txt
endif
BIN := $(VENV)/bin
PY := $(BIN)/python

# The name contains the version, so a new version is installed, with its metadata.
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/isometry/__init__.py)
INSTALLED := $(VENV)/installed-$(VERSION)

# Two workers share the machine. With more threads they would only get in each other's way.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest

# without the notice about its successor that the theme would print on every build
MKDOCS := NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs

.PHONY: help test demo check docs bench soak wheel format clean

help:
	@echo "make test    the suite; its linear algebra again, with shapes checked and"
	@echo "             without C; and a part with a BLAS that sums in another order"
	@echo "make test TORCH=2.7.1  the library with that torch; writes records/torch.json"
	@echo "make demo    ExpRNN and an LSTM on a copying task: a figure and a report"
	@echo "make check   format, lint, types, import contracts, spelling, docs"
	@echo "make format  format the sources as 'make check' expects"
	@echo "make docs    build the site into site/"
	@echo "make bench   all measurements against peers"
	@echo "make soak    the long tests; writes records/soak.json"
	@echo "make wheel   sdist, pure wheel and platform wheel, checked, in dist/"
	@echo "make clean   remove the environment and every cache"

$(INSTALLED): pyproject.toml constraints.txt
	$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
ifdef TORCH
	sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt >$(CONSTRAINTS)
endif
	$(PY) -m pip install --quiet --disable-pip-version-check \
		-c $(CONSTRAINTS) -e '.[lab,bench,dev]'
	@touch $@

ifdef TORCH
# the laboratory and the rules of the house do not depend on the version
test: $(INSTALLED)
	$(PYTEST) -n 2 --record-torch=records/torch.json -m "not soak or each_torch" \
		tests/backend tests/linalg tests/groups tests/parametrizations tests/optim \
		tests/nn tests/test_checks.py tests/test_config.py tests/test_declare.py \
		tests/test_rotations.py tests/test_torch.py
else
test: $(INSTALLED)
	$(PYTEST) -n 2 --cov
	ISOMETRY_NATIVE=0 $(PYTEST) -n 2 --shapes \
		-m "not errors and not soak and not once" tests/linalg
	@# a sample of what `make soak` does, with another BLAS and another seed
	MKL_CBWR=COMPATIBLE $(PYTEST) -n 2 --blas=scrambled --seed 1 \
		-m "not errors and not soak and not once" \
		tests/backend/test_kernels.py tests/linalg/test_rotation.py
endif

demo: $(INSTALLED)
	$(PY) -m tools.demo

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	@# finds what newer versions of Python have removed since 3.11
	$(BIN)/pyright --pythonversion 3.14 src
	$(BIN)/lint-imports --no-logo
	$(BIN)/typos
	$(MKDOCS) build --strict

format: $(INSTALLED)
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

docs: $(INSTALLED)
	$(MKDOCS) build --strict

bench: $(INSTALLED)
	$(PY) -m benchmarks

soak: $(INSTALLED)
	$(PYTEST) tests -m soak --record=records/soak.json

# The pure wheel is built from the sdist, so nothing is missing from the sdist. The
# platform tag that auditwheel finds for the other wheel must be the tag in its name.
wheel: $(INSTALLED)
	rm -rf dist
	$(PY) -m build --no-isolation
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(PY) -m build --no-isolation --wheel
	$(BIN)/twine check --strict dist/*
	for wheel in dist/*-manylinux_*.whl; do \
		tag=$${wheel##*-none-}; \
		$(BIN)/auditwheel show $$wheel | grep "following.*\"$${tag%.whl}\"" || exit 1; \
	done

clean:
	rm -rf .venv .venv-* dist site .pytest_cache .ruff_cache .hypothesis .coverage
