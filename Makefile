# make train, make test: each installs what is needed first, into .venv, and needs nothing but python3.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.PHONY: train test chat tensorboard bench check format install gpu beam lock clean

train: install
	$(BIN)/python train.py $(ARGS)

chat: install
	@$(BIN)/python chat.py $(ARGS)

bench: install
	$(BIN)/python -m benchmarks $(or $(ARGS),corpus)

tensorboard: install
	$(BIN)/tensorboard --logdir tensorboard --host localhost $(ARGS)

test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: .venv/installed

.venv/installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "error: $$($(PYTHON) --version) found, 3.10 to 3.13 needed; name one: make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv --clear .venv
	@echo "Installing into .venv: half a gigabyte, a minute or two ..."
	$(BIN)/pip install --quiet --disable-pip-version-check --use-pep517 --require-hashes -r requirements.txt
	touch $@

# The CUDA libraries that TensorFlow wants, beside an NVIDIA driver that is already there.
gpu: install
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-gpu.txt

# Apache Beam, to encode a corpus on many machines.
beam: install
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-beam.txt

# After a change of pyproject.toml.
lock: install
	$(BIN)/pip install --quiet --disable-pip-version-check "uv>=0.9"
	for pair in dev:requirements.txt gpu:requirements-gpu.txt beam:requirements-beam.txt; do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --no-annotate \
	    pyproject.toml --extra $${pair%%:*} -o $${pair##*:}; \
	done

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
