# `make` lists the commands. Each one builds .venv first if it has to (scripts/bootstrap).
# STACK=baseline|current|core, PYTHON=..., VENV=... and ARGS="..." can be given to any of them.
# Processes that share the tests; each takes up to 3 GB. WORKERS=0 runs them in one, for -s and --pdb.
# A file of default tests stays in one process, as its fixtures train models, but for a few long
# files; slow tests go to whoever is free, but for those that share a cluster of Ray or a run of the
# penguin pipeline (tests/conftest.py).
WORKERS ?= 2
VENV ?= .venv
PY := $(VENV)/bin/python
export VENV STACK PYTHON
# Images of containers often set this. Without bytecode each `import tfx` takes 9 s longer.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup pipeline notebook test test-slow campaigns test-all check lint types docs format ci constraints clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## build or update the virtual environment
	@scripts/bootstrap

pipeline: export EXTRA = examples
pipeline: setup ## run the penguin pipeline end to end on this machine
	$(PY) -m pipelines.run_local $(ARGS)

notebook: setup ## open the notebook that walks the pipeline step by step
	$(PY) -m notebook notebooks/penguin.ipynb

test: setup ## run the default tests (ARGS="tests/user_code -k lazy" chooses)
	$(PY) -m pytest -m "not slow and not campaign" --numprocesses $(WORKERS) --dist loadfile $(ARGS)

test-slow: setup ## run the slow tests, which `make test` leaves out
	$(PY) -m pytest -m "slow and not campaign" --numprocesses $(WORKERS) --dist loadscope $(ARGS)

campaigns: setup ## run the campaigns: kills, clusters, slots, resumes, inputs (ARGS="--changed-since COMMIT" chooses)
	$(PY) -m pytest -m campaign --numprocesses $(WORKERS) --dist loadscope $(ARGS)

test-all: setup ## run every test
	$(PY) -m pytest $(ARGS)

check: lint types docs ## what to run before each commit: style, types, the documents' links

lint: setup ## check style and formatting
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: setup ## check types
	$(PY) -m mypy

docs: setup ## write docs/checks.md, and build the documents as a site, build/site/index.html
	$(PY) scripts/site_pages.py
	NO_MKDOCS_2_WARNING=true $(PY) -m mkdocs build --strict
	@echo "The documents: $(CURDIR)/build/site/index.html"

format: setup ## rewrite what the linter can fix
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

ci: ## all that CI runs (.ci/run STAGE... chooses)
	.ci/run

constraints: ## pin the newest versions that fit together (needs uv)
	scripts/lock

clean: ## delete the environment and what the runs left
	[ ! -e $(VENV)/.generic-trainer ] || rm -rf $(VENV)
	rm -rf runs build/site .pytest_cache .mypy_cache .ruff_cache
