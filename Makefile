# Each target alone is enough on a bare machine with Python 3.11 or 3.12, pip and make.
PYTHON ?= python3
VENV   ?= .venv
LAB    ?=                 # options for jupyter lab, e.g. LAB="--no-browser --port 9999"
SEED   ?= 1                # of noise
TESTS  ?= tests            # what make test-code runs
JOBS   ?= 2                # test processes, of one thread and about 2 GB each
BIN    := $(VENV)/bin
NB     := $(sort $(wildcard notebooks/*.ipynb notebooks/solutions/*.ipynb))
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -q -e
PARALLEL := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: lab test test-code test-notebooks noise train-smoke figures stills screens html slides readme fetch lint clean
.DEFAULT_GOAL := lab
.NOTPARALLEL:             # nothing else beside tests, which fill the machine

$(VENV)/.lab: pyproject.toml     # what a reader needs; an environment that is there and has pip is kept
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"specnb needs Python 3.11 or newer, $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); $(PYTHON) -m pip install --user virtualenv && $(PYTHON) -m virtualenv $(VENV); }
	$(INSTALL) ".[lab]"
	touch $@

$(VENV)/.dev: $(VENV)/.lab       # what tests, site and browser need besides
	$(INSTALL) ".[dev]"
	touch $@

fetch: $(VENV)/.lab             # the embedded model and the prompt sets, into the user cache
	$(BIN)/python -m specnb.models

lab: fetch                      # JupyterLab on the first notebook; the whole repository is served, so links work
	$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(LAB)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

test: lint fetch                # ruff, the tests and, after a failed test, too, every notebook
	$(MAKE) --keep-going test-code test-notebooks

test-code: $(VENV)/.dev fetch
	$(PARALLEL) $(BIN)/python -m pytest $(TESTS) -n $(JOBS) --dist worksteal --durations 40 -rs

test-notebooks: $(VENV)/.dev fetch    # every notebook's saved output against a fresh run
	$(PARALLEL) $(BIN)/python -m pytest --nbval --nbval-current-env -n $(JOBS) --dist loadfile $(NB)

noise: $(VENV)/.dev fetch       # tests and notebooks while torch rounds like another processor: make noise SEED=2
	SPECNB_NOISE=$(SEED) $(MAKE) --keep-going test-code test-notebooks

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

clean:
	rm -rf $(VENV) build .pytest_cache .ruff_cache
