# Rings, Buckets, Graphs: everything a reader or an author runs. `make help` lists it.
#
# PYTHON=/path/to/python  which Python makes the environment (default: the first one >= 3.10)
# ARGS="..."              passed on: make test ARGS="-k ring", make grade ARGS="ring_allreduce --watch",
#                         make lab ARGS="--no-browser --allow-root"

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help env book notebooks test lab bench grade clean

# With the environment first on PATH, so that `!python` in a cell means this Python too.
IN_ENV := PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python

help: ## List these commands.
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name does; \
	do printf '  make %-10s %s\n' "$$name" "$$does"; done

env: ## Make or update the environment in .venv (the others do it by themselves).
	@PYTHON="$(PYTHON)" sh tools/setup.sh

book: env ## Run every chapter and build the book; prints the file to open.
	@$(IN_ENV) tools/build_book.py

notebooks: env ## Write every chapter as a plain notebook to _build/html/notebooks.
	@$(IN_ENV) tools/notebooks.py

test: env ## Build the book if it is stale, then run every test, in a browser too.
	@$(IN_ENV) tools/build_book.py
	@$(IN_ENV) -m pytest $(ARGS)

lab: env ## Open the chapters in JupyterLab, to run and change them.
	@$(IN_ENV) tools/lab.py $(ARGS)

bench: env ## Time allreduce on every wire beside gloo: make bench ARGS="--plot bench.svg".
	@$(IN_ENV) -m minidist bench $(ARGS)

grade: env ## Check your answers to the exercises: make grade ARGS="ring_allreduce --watch".
	@$(IN_ENV) -m minidist grade $(ARGS)

clean: ## Remove the built book and the environment; your answers stay.
	rm -rf _build .venv book/assets/mathjax .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
