# `make` lists what there is. Everything runs from .venv, which is made on first use.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
ARGS ?=

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.installed  ## make .venv and install what was tested together

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	@touch $@

# Python's own library is text that every machine has. Keys in ARGS win, since the last of two counts.
FIRST := model=llama_tiny data=source data.samples=6000 data.seq_len=128 train.max_steps=1500 eval.generate=3 save.final=true

train: setup  ## train a tiny model on Python's library, in two minutes; other options: make train ARGS="precision=bf16"
	$(RUN) train.py $(FIRST) $(ARGS)

cuda-build: setup  ## the CUDA build of this torch, once (1.5 GB, without NVIDIA's libraries): for the emulated device
	@PYTHONPATH=recipes $(RUN) -m legroom.script_check.cuda_build \
	  || echo "The CUDA build could not be fetched: the tests that run it are skipped."

test: setup cuda-build  ## run the tests without the long ones, in two processes
	$(RUN) -m pytest -q -n 2 --dist loadfile $(ARGS)

test-all: setup cuda-build  ## run the long tests too: every pair of options, many kills, every launcher
	$(RUN) -m pytest -q -n 2 --dist loadfile -m "not slurm" $(ARGS)

test-browser: setup  ## the pages in a real browser: installs playwright, and Chromium where there is none
	@$(RUN) -c "import playwright" 2>/dev/null || $(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	@command -v chromium chromium-browser google-chrome >/dev/null || $(RUN) -m playwright install chromium \
	  || { echo "No Chromium: install Debian's (apt install chromium), or see playwright.dev/python/docs/browsers"; exit 1; }
	$(RUN) -m pytest -q -m browser tests $(ARGS)

test-cuda-build: cuda-build  ## every test that runs a CUDA build of torch on the emulated device, the long ones too
	$(RUN) -m pytest -q -m cuda_build tests $(ARGS)

test-slurm: setup  ## on a SLURM of this machine, as root: apt-get install slurm-wlm munge. About ten minutes
	$(RUN) -m pytest -q -m slurm tests/jobs/test_slurm.py $(ARGS)

check: setup  ## lint, formatting and types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pyright --threads 2

check-latest:  ## the contract tests of recipes/legroom/compat against the newest releases, in a temporary environment
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(PYTHON) -m venv "$$folder/venv"; \
	"$$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade $$($(PYTHON) tests/tools/requirements.py newest); \
	"$$folder/venv/bin/python" -m pip list --disable-pip-version-check | grep -iE '^(torch|transformers|accelerate|hydra-core|submitit|bitsandbytes) '; \
	"$$folder/venv/bin/python" -m pytest -q -p no:cacheprovider tests/compat $(ARGS)

docs: setup  ## build docs/ into site/
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet

bench: setup  ## what the recipes add to a training step and to a whole run
	$(RUN) tests/tools/bench_step.py

IMAGE ?= cpu
image:  ## a container for a CPU; IMAGE=gpu: one on NVIDIA's PyTorch
	@echo "docker build --target $(IMAGE) -t legroom:$(IMAGE) ."
	@command -v docker >/dev/null || { echo "No docker here: install it, or type the line above where it is."; exit 1; }
	docker build --target $(IMAGE) -t legroom:$(IMAGE) .

clean:  ## remove .venv and caches; outputs/ stays
	rm -rf $(VENV) .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup train cuda-build test test-all test-browser test-cuda-build test-slurm check check-latest bench image clean
