# Each target alone is enough on a bare machine with Python 3.11 or 3.12, pip and make.
PYTHON ?= python3
VENV   ?= .venv
LAB    ?=                 # options for jupyter lab, e.g. LAB="--no-browser --port 9999"
JOBS   ?= 2                # test processes, of one thread and about 2 GB each
BIN    := $(VENV)/bin
NB     := $(sort $(wildcard notebooks/*.ipynb notebooks/solutions/*.ipynb))
PARALLEL := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: lab test train-smoke figures screens html fetch lint clean
.DEFAULT_GOAL := lab

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"specnb needs Python 3.11 or newer, $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); $(PYTHON) -m pip install --user virtualenv && $(PYTHON) -m virtualenv $(VENV); }
	$(BIN)/python -m pip install --disable-pip-version-check -q -e ".[dev]"
	touch $@

fetch: $(VENV)/.ready           # the embedded model and the prompt sets, into the user cache
	$(BIN)/python -m specnb.models

lab: fetch                      # JupyterLab on the first notebook
	$(BIN)/jupyter lab $(LAB) notebooks/00_start_here.ipynb

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

test: lint fetch                # ruff, pytest, and every notebook's saved output against a fresh run
	$(PARALLEL) $(BIN)/python -m pytest tests -n $(JOBS) --dist worksteal --durations 12 -rs
	$(PARALLEL) $(BIN)/python -m pytest --nbval --nbval-current-env -n $(JOBS) --dist loadfile $(NB)

train-smoke: $(VENV)/.ready     # train every kind of head for a few steps on a tiny corpus (part of make test)
	$(BIN)/python -m pytest tests/training/test_training.py

figures: fetch                  # run all notebooks on a fresh kernel, in place; they write figures/
	$(PARALLEL) $(BIN)/python tools/run_notebooks.py $(NB)

screens: fetch                  # a browser's picture of every widget, into figures/screens
	SPECNB_SCREENS=figures/screens $(PARALLEL) $(BIN)/python -m pytest tests/show/test_browser.py -rs -k every_control -n $(JOBS) --dist worksteal

html: $(VENV)/.ready            # README and notebooks as a site to browse: build/html/index.html
	$(BIN)/python tools/build_site.py build/html

clean:
	rm -rf $(VENV) build .pytest_cache .ruff_cache
