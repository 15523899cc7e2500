# Each target first installs what it needs into .venv; only python3 must be installed. Two sets of locked packages:
# requirements/train.txt for running (train, chat, tensorboard), requirements/dev.txt for developing (test, check, bench).
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --quiet --disable-pip-version-check
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --no-annotate
ARGS ?=

.PHONY: train test test-changed chat serve tensorboard bench mutants check format site install install-dev gpu beam lock clean

train: install
	$(BIN)/python train.py $(ARGS)

chat: install
	@$(BIN)/python chat.py $(ARGS)

# The API and the page in a browser. PORT=8001 is another port, SERVE=0.0.0.0:80 another address.
serve: .venv/installed-serve
	@$(BIN)/python chat.py --serve $(or $(SERVE),127.0.0.1:$(or $(PORT),8000)) $(ARGS)

bench: install-dev
	$(BIN)/python -m benchmarks $(or $(ARGS),corpus)

tensorboard: install
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
	cp --parents *.md LICENSE docs/*.md benchmarks/README.md deploy/kubernetes/*.md build/site-source
	cp --parents docs/pictures/*.png docs/pictures/*.svg docs/pictures/*.webp build/site-source
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

install: .venv/installed

install-dev: .venv/installed-dev

.venv/installed: requirements/train.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "error: $$($(PYTHON) --version) found, 3.10 to 3.13 needed; name one: make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv --clear .venv
	@echo "Installing into .venv: half a gigabyte, a minute or two ..."
	$(PIP) install --use-pep517 --require-hashes -r requirements/train.txt
	touch $@

.venv/installed-dev: .venv/installed requirements/dev.txt
	@echo "Installing the packages for tests and checks ..."
	$(PIP) install --use-pep517 --require-hashes -r requirements/dev.txt
	touch $@

.venv/installed-serve: .venv/installed requirements/serve.txt
	@echo "Installing the packages of the server ..."
	$(PIP) install --use-pep517 --require-hashes -r requirements/serve.txt
	touch $@

.venv/installed-docs: .venv/installed requirements/docs.txt
	@echo "Installing the packages of the site ..."
	$(PIP) install --use-pep517 --require-hashes -r requirements/docs.txt
	touch $@

# The CUDA libraries that TensorFlow needs. The NVIDIA driver must already be installed. Linux only.
gpu: install
	$(PIP) install --use-pep517 --require-hashes -r requirements/gpu.txt

# Apache Beam, to encode a corpus on many machines.
beam: install
	$(PIP) install --use-pep517 --require-hashes -r requirements/beam.txt

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
