# A fresh machine needs two commands: `make demo` and `make test`. Both set up .venv first.
#
# To use an interpreter that already has torch (a GPU machine, say), name it: `make demo PY=python3`.
# Then nothing is installed, and the package is taken from src/.

PYTHON ?= python3
VENV := .venv
PY ?= $(VENV)/bin/python
JOBS ?= 3
KERNELS := $(shell find src/kernelwright/kernels -name '*.cu*' -o -name '*.[ch]pp' 2>/dev/null)

CLANG_FORMAT := $(if $(filter $(VENV)/%,$(PY)),$(VENV)/bin/clang-format,clang-format)

export PYTHONPATH := src
# Some images forbid it; hundreds of processes would then compile the package and the tests anew.
unexport PYTHONDONTWRITEBYTECODE

ifeq ($(PY),$(VENV)/bin/python)
SETUP := $(VENV)/.ready
endif

.PHONY: demo test test-all check test-gpu lint format docs bench bench-corpus clean

demo: $(SETUP)
	$(PY) examples/demo.py

# Three workers on two cores: some tests wait. Of the slow ones a part (tests/drawn.py).
test: $(SETUP)
	$(PY) -m pytest -n $(JOBS) --dist worksteal --durations 25 tests

test-all: $(SETUP)
	$(PY) -m pytest -n $(JOBS) --dist worksteal --durations 25 --whole tests

# What needs no compiler and no GPU, and the linters: the minutes before a commit.
check: $(SETUP) lint
	$(PY) -m pytest -n $(JOBS) --dist worksteal -q tests/null

test-gpu:
	$(PYTHON) -m pytest tests/cuda

lint: $(SETUP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(CLANG_FORMAT) --dry-run -Werror $(KERNELS)

format: $(SETUP)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(CLANG_FORMAT) -i $(KERNELS)

# The site, into build/docs; a link that leads nowhere, or a docstring that is no text, is an error.
docs: $(SETUP)
	$(PY) -m sphinx -b html -W --keep-going -q -j auto docs build/docs

bench: $(SETUP)
	$(PY) benchmarks/founding.py

# Goes on where an earlier run was stopped; CORPUS="--device cpu --small" is a try without a GPU.
bench-corpus: $(SETUP)
	$(PY) benchmarks/corpus.py --resume $(CORPUS)

clean:
	rm -rf $(VENV) build dist src/*.egg-info

# torch goes first and alone, so that nothing that depends on it can choose another build.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@
