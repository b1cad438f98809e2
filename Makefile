# Each target alone is enough on a bare machine with Python 3.11 or newer and make: make help lists them.
# PYTHON: of a new environment. VENV: the environment; one that is there is kept. PINS: empty, it keeps any torch that
# pyproject.toml allows, or takes the newest.
PYTHON ?= python3
VENV   ?= .venv
PINS   ?= -c constraints.txt
LAB    ?=                 # options for jupyter lab, e.g. LAB="--no-browser --port 9999"
SEED   ?= 1                # of noise
TESTS  ?= tests            # what make test-code runs
JOBS   ?= 2                # test processes, of one thread and about 2 GB each
ALL    ?=                  # 1: tests marked slow and the solutions' notebooks, too
BIN    := $(VENV)/bin
LONG   := $(foreach number,04 00 03 08 02 06,$(wildcard notebooks/$(number)_*.ipynb))# tested first: none runs alone last
MAINS  := $(LONG) $(filter-out $(LONG),$(sort $(wildcard notebooks/*.ipynb)))
NB     := $(MAINS) $(sort $(wildcard notebooks/solutions/*.ipynb))
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check $(PINS) -e
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
PARALLEL := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help lab test test-all test-code test-notebooks faults noise train-smoke figures stills screens html slides readme fetch lint clean
.DEFAULT_GOAL := lab
.NOTPARALLEL:             # nothing else beside tests, which fill the machine

help:                           # these lines
	@awk -F ':[^#]*# *' '/^[a-z][a-z-]*:.*#/ {printf "make %-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

$(VENV)/.lab: pyproject.toml constraints.txt    # what a reader needs
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) tools/environment.py $(VENV)
	@echo "Installing into $(VENV). Without a torch there, pip downloads one: for CPUs 0.2 GB, with CUDA over 2.5 GB (docs/install.md says how to choose)"
	$(INSTALL) ".[lab]"
	touch $@

$(VENV)/.dev: $(VENV)/.lab       # what tests, site and browser need besides
	$(INSTALL) ".[dev]"
	touch $@

fetch: $(VENV)/.lab             # the embedded model and the prompt sets, into the user cache
	$(BIN)/python -m specnb.models

lab: fetch                      # JupyterLab on the first notebook; the whole repository is served, so links work
	$(BIN)/jupyter lab $(AS_ROOT) --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(LAB)

lint: $(VENV)/.dev              # ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

test: lint fetch                # ruff, the tests but for slow ones and, after a failed test, too, the notebooks: ten minutes
	$(MAKE) --keep-going test-code test-notebooks

test-all: lint fetch            # the same with all tests, and the notebooks of solutions: what CI runs
	$(MAKE) --keep-going ALL=1 test-code test-notebooks

test-code: $(VENV)/.dev fetch   # the tests alone: make test-code TESTS=tests/loop JOBS=1; with slow ones: ALL=1
	$(PARALLEL) $(BIN)/python -m pytest $(TESTS) $(if $(strip $(ALL)),,-m "not slow") -n $(JOBS) --dist worksteal --durations 40 -rs

test-notebooks: $(VENV)/.dev fetch    # every notebook's saved output against a fresh run; with solutions: ALL=1
	$(PARALLEL) $(BIN)/python -m pytest --nbval --nbval-current-env -n $(JOBS) --dist loadfile --no-loadscope-reorder $(if $(strip $(ALL)),$(NB),$(MAINS))

faults: $(VENV)/.dev fetch      # plant known faults in a copy, one at a time: does a test notice each? half an hour
	$(PARALLEL) $(BIN)/python tools/plant_faults.py

noise: $(VENV)/.dev fetch       # tests and notebooks while torch rounds like another processor: make noise SEED=2
	SPECNB_NOISE=$(SEED) $(MAKE) --keep-going ALL=1 test-code test-notebooks

train-smoke: $(VENV)/.dev     # train every kind of head for a few steps on a tiny corpus (part of make test)
	$(BIN)/python -m pytest tests/training/test_training.py

figures: $(VENV)/.dev fetch                  # run all notebooks on a fresh kernel, in place; they write figures/
	$(PARALLEL) $(BIN)/python tools/run_notebooks.py $(NB)

stills: $(VENV)/.dev fetch                   # what the site shows of every widget, into figures/stills
	$(PARALLEL) $(BIN)/python tools/make_stills.py $(wildcard notebooks/*.ipynb)

screens: $(VENV)/.dev fetch                  # pictures of notebook 00's widgets by Chromium, into figures/screens
	SPECNB_SCREENS=figures/screens $(PARALLEL) $(BIN)/python -m pytest tests/show/test_browser.py -rs -k "every_control and 00"

readme: $(VENV)/.lab            # the README's results, from the recorded race
	$(BIN)/python tools/fill_readme.py

html: $(VENV)/.dev              # README, docs and notebooks as a site to browse: build/html/index.html
	$(BIN)/python tools/build_site.py build/html

slides: $(VENV)/.dev            # a deck of reveal.js slides from each notebook: build/slides/*.html
	$(BIN)/python tools/make_slides.py build/slides

clean:                          # what make made: the environment, if make made it, the site, caches of tools
	@if [ -f $(VENV)/.made-by-make ]; then rm -rf $(VENV); elif [ -d $(VENV) ]; then echo "$(VENV) was not made by make: it stays"; fi
	rm -rf build .pytest_cache .ruff_cache
