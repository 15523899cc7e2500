# Each target first installs what it needs into .venv; only python3 must be installed. Two sets of locked packages:
# requirements/train.txt for running (train, chat, tensorboard), requirements/dev.txt for developing (test, check, bench).
# Packages that users add to .venv stay, and an installation that was interrupted is finished by the next make.
PYTHON ?= python3
BIN := .venv/bin
VERSION := sys; print("%d.%d" % sys.version_info[:2])
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# pip takes a package for installed before its last file is written, RECORD with the line of INSTALLER. It moves the files
# of a version that it replaces to folders whose names begin with ~.
FORGET_UNFINISHED := for info in .venv/lib/python*/site-packages/*.dist-info; do \
	  grep -qs /INSTALLER, $$info/RECORD || rm -rf $$info; done; rm -rf .venv/lib/python*/site-packages/~*
INSTALL = $(FORGET_UNFINISHED); $(PIP) install --use-pep517 --require-hashes -r $< && touch $@
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --no-annotate
ARGS ?=

.NOTPARALLEL: # two installations at once would disturb each other
.PHONY: train test test-changed chat serve tensorboard bench mutants check format site install
.PHONY: install-dev install-serve gpu beam lock clean trained environment

train: install
	$(BIN)/python train.py $(ARGS)

chat: trained install
	@$(BIN)/python chat.py $(ARGS)

# The API and the page in a browser. PORT=8001 is another port, SERVE=0.0.0.0:80 another address.
serve: trained install-serve
	@$(BIN)/python chat.py --serve $(or $(SERVE),127.0.0.1:$(or $(PORT),8000)) $(ARGS)

bench: install-dev
	$(BIN)/python -m benchmarks $(or $(ARGS),corpus)

tensorboard: trained install
	$(BIN)/tensorboard --logdir tensorboard --host localhost $(ARGS)

# Three processes on two cores, since many tests wait for others. With --dist loadfile, a run whose process has died
# never ends if the process is replaced. Bytecode is kept, also where the environment says otherwise: else each process
# compiles all tests, and rewrites their assertions, again.
test: install-dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(ARGS)

# The tests of the files that differ from the last commit, or else of its own files.
test-changed: install-dev
	files=$$($(BIN)/python -m tests.changed) && test -z "$$files" || \
	  PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 $(ARGS) $$files

# Deletes 200 pieces of the product at random, one at a time, and counts how many the tests notice: hours on two cores.
# ARGS="--number 30 chatbot/decoding" takes a few in some of the files.
mutants: install-dev
	$(BIN)/python -m tests.mutants $(ARGS)

check: install-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documents as pages, in build/site; a link without a target is an error.
site: .venv/installed-docs
	rm -rf build/site build/site-source
	mkdir -p build/site-source
	cp --parents *.md LICENSE docs/*.md benchmarks/README.md deploy/kubernetes/*.md examples/*/*.* build/site-source
	cp --parents docs/pictures/*.png docs/pictures/*.svg docs/pictures/*.webp build/site-source
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

install: .venv/installed

install-dev: .venv/installed-dev

install-serve: .venv/installed-serve

# The CUDA libraries that TensorFlow needs. The NVIDIA driver must already be installed. Linux only.
gpu: .venv/installed-gpu

# Apache Beam, to encode a corpus on many machines.
beam: .venv/installed-beam

.venv/installed: requirements/train.txt | environment
	@echo "Installing into .venv: 0.8 GB to download, a minute or two ..."
	@$(INSTALL)

.venv/installed-%: requirements/%.txt .venv/installed
	@echo "Installing the packages of $< ..."
	@$(INSTALL)

# A Python with pip in .venv. The activate scripts are the last files of `python -m venv`.
environment:
	@test -e $(BIN)/activate && $(BIN)/python -c 'import pip, $(VERSION)' 2> /dev/null | grep -q '^3\.1[0-3]$$' || { \
	  version=$$($(PYTHON) -c 'import $(VERSION)' 2> /dev/null); \
	  case $$version in 3.1[0-3]) ;; *) \
	    echo "error: Python 3.10 to 3.13 is needed, and $(PYTHON) is $${version:-missing}; name one: make PYTHON=python3.12" >&2; \
	    exit 2; esac; \
	  test -e .venv/lib/python$$version || test -z "$$(ls .venv/lib 2> /dev/null)" || { \
	    echo "error: .venv is for" $$(ls .venv/lib)", not for python$$version; remove it (rm -r .venv), then repeat make" >&2; \
	    exit 2; }; \
	  test "$$($(BIN)/python -c 'import $(VERSION)' 2> /dev/null)" = $$version || rm -f $(BIN)/python $(BIN)/python3*; \
	  $(FORGET_UNFINISHED); \
	  $(PYTHON) -m venv .venv; }

# Ends what needs an attempt before its packages are installed.
trained:
	$(if $(ARGS)$(wildcard checkpoints/*/config.json),,$(error no attempt in checkpoints/ yet; run `make train` first))

# Run this after a change of pyproject.toml. Locked versions within the ranges are kept.
lock: install
	$(PIP) install "uv>=0.9"
	$(COMPILE) pyproject.toml --extra train -o requirements/train.txt
	$(COMPILE) pyproject.toml --extra train --extra dev --constraint requirements/train.txt -o requirements/dev.txt
	$(COMPILE) pyproject.toml --extra train --extra gpu --constraint requirements/train.txt -o requirements/gpu.txt
	$(COMPILE) pyproject.toml --extra train --extra beam -o requirements/beam.txt
	$(COMPILE) pyproject.toml --extra docs --constraint requirements/train.txt -o requirements/docs.txt
	$(COMPILE) pyproject.toml --extra train --extra serve --extra telegram --constraint requirements/train.txt -o requirements/serve.txt

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
