# Everything runs in .venv, which any target builds first when it is missing or not what requirements/ asks for.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run test figures doctor lint venv clean

STUDY ?= laptop
STUDIES := $(filter-out schema,$(basename $(notdir $(wildcard workflow/config/*.yaml))))
CORES ?= $(shell nproc)
# CRITEO goes through the environment as it is written: no shell and no make reads its blanks, quotes and dollars
ifneq ($(origin CRITEO),undefined)
override export CRITEO := $(value CRITEO)
endif
# CUDA=1 builds .venv for GPUs, CUDA=0 for the CPU; unset, .venv stays what it is
CUDA ?= $(wildcard .venv/complete-cuda-*)

# The mark of a finished .venv carries what it was built from, and is written last: a build that was cut short, other
# pins or a checkout that has moved (scripts in .venv hold its path) have no such mark.
DEVICE := $(if $(filter-out 0,$(CUDA)),cuda,cpu)
SOURCES := $(sort $(wildcard requirements/*.txt) requirements/fbgemm-gpu/pyproject.toml)
STAMP := .venv/complete-$(DEVICE)-$(shell (pwd; cat $(SOURCES)) | cksum | tr -dc 0-9)

EXPECT_cpu := 1 to 5 minutes, 2 GB. Should pip fetch a torch of several GB, stop it and see README.md (Setting up).
EXPECT_cuda := about 10 minutes, 10 GB.
EXPECT = $(EXPECT_$(DEVICE))

SNAKEMAKE := PYTHONPATH=workflow/logger snakemake --logger brief --cores $(CORES)
export PATH := $(CURDIR)/.venv/bin:$(PATH)

help: ## this list
	@echo "usage: make TARGET [STUDY=laptop] [CRITEO=path/to/train.txt] [CORES=$(CORES)] [CUDA=1]"
	@echo "studies: $(STUDIES) (workflow/config/; each file says what it takes and showed)"
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-8s %s\n", $$1, $$2}' Makefile

run: $(STAMP) ## run a study: data, training, tables, figures, results/STUDY/report.html
	@[ "$(filter $(STUDIES),$(STUDY))" ] || { echo "error: there is no study '$(STUDY)': set STUDY to one of $(STUDIES)" >&2; exit 2; }
	@$(SNAKEMAKE) --configfile 'workflow/config/$(STUDY).yaml'

test: $(STAMP) ## run the tests
	@python -m pytest -n $(CORES) --maxprocesses 4 --dist loadfile

figures: $(STAMP) ## draw the tables and figures again from results/reference/, without training
	@$(SNAKEMAKE) figures

doctor: $(STAMP) ## check versions, the stack and what this machine allows
	@python -m bench.doctor

lint: $(STAMP) ## check style: ruff, snakefmt, snakemake --lint
	@ruff check .
	@ruff format --check .
	@snakefmt --check Snakefile workflow
	@snakemake --lint

venv: $(STAMP) ## build .venv, and nothing else

clean: ## remove .venv and caches; results/ stays
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# Two makes at once would build over each other: the second waits here, and finds the work done.
# A .venv that make did not build (no prompt of ours) is somebody's own, and is left alone.
$(STAMP):
	@exec 9<Makefile; flock 9; if [ -e $@ ]; then exit 0; fi; \
	if [ -e .venv/pyvenv.cfg ] && ! grep -q 'prompt = .*dmt-suite' .venv/pyvenv.cfg; then \
	  echo "error: .venv is there but was not built by make: move it away, or remove it with 'make clean'" >&2; exit 2; \
	fi; \
	rm -rf .venv; \
	for python in python3.11 python3 python3.12; do \
	  if $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then \
	    echo "Building .venv with $$($$python --version) from requirements/$(DEVICE).txt: $(EXPECT)"; \
	    $$python -m venv --prompt dmt-suite .venv; \
	    python -m pip install --disable-pip-version-check -r requirements/$(DEVICE).txt -r requirements/dev.txt; \
	    python -m pip check; \
	    touch $@; \
	    exit 0; \
	  fi; \
	done; \
	echo "error: neither python3.11 nor python3 is Python 3.11 or 3.12: install one (Debian: python3.11 and" \
	  "python3.11-venv), or activate a conda environment that has it" >&2; \
	exit 2
