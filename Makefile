# Works on a machine that has only Python (3.11 or newer, with venv), make and a compiler.
# The same targets serve people and CI.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TESTS ?= tests
# Tests with real clocks, load tests above all, run alone; all others on several workers.
PYTEST ?= $(BIN)/python tools/run_tests.py -q
ALONE := $(BIN)/python -m pytest -q
# Exit codes of the demo that are no failure (4: the budget ended undecided).
DEMO_ACCEPTS ?= 0

GPU_PYTHON ?=

.PHONY: help env demo test test-long test-gpu gpu-proof fuzz check lint type bench docs tools clean

help:            ## shows the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/python -m analyzer.twin.precompile
	@touch $@

env: $(STAMP)    ## makes the environment in .venv

demo: $(STAMP)   ## searches, reports and exports the example model (about two minutes)
	@mkdir -p demo
	@set -x; $(BIN)/analyze examples/digits.onnx --latency-budget 50ms --budget 60s \
	  --calibration-data examples/digits.npz --store sqlite:///demo/results.db \
	  --report demo/report.html --export demo/model_repository --force; \
	  { code=$$?; set +x; } 2>/dev/null; echo "The demo ended with exit code $$code."; \
	  if [ $$code = 4 ]; then echo "4 means undecided: the machine was too busy for a proof in 60 s. Run make demo" \
	    "again, or go on with the command that is printed above (analyze is in $(BIN))."; fi; \
	  case " $(DEMO_ACCEPTS) " in *" $$code "*) ;; *) exit $$code ;; esac

tools:           ## fetches a real Triton, perf_analyzer and more into .tools (for tests)
	$(PYTHON) tools/fetch_tools.py

test: $(STAMP)   ## runs the tests (fifteen to twenty minutes on two cores)
	-$(PYTHON) tools/fetch_tools.py
	-$(BIN)/python tools/real_tensorrt.py --fetch
	$(PYTEST) -m 'not gpu and not long' $(TESTS)

test-long: $(STAMP) ## runs the long tests as well
	$(PYTEST) -m 'not gpu' $(TESTS)

test-gpu: $(STAMP)  ## runs what needs an NVIDIA GPU
	$(ALONE) -m gpu $(TESTS)

gpu-proof:       ## ten minutes on a GPU, resumable; GPU_PYTHON=python3 takes that one's packages
	@if [ -z "$(GPU_PYTHON)" ]; then $(PYTHON) -m venv .venv-gpu && \
	  .venv-gpu/bin/python -m pip install --quiet --editable '.[gpu]' pytest pytest-timeout cupy-cuda13x; fi
	PYTHONPATH="$$PWD:$$PYTHONPATH" $(or $(GPU_PYTHON),.venv-gpu/bin/python) bench/gpu.py

fuzz: $(STAMP)   ## fuzzes the HTTP and gRPC front ends for ten minutes
	FUZZ_SECONDS=600 $(ALONE) --timeout 1200 tests/server/test_fuzz.py

check: lint type ## lint and types

lint: $(STAMP)   ## ruff (lint and format), hadolint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint Dockerfile deploy/service/Dockerfile

type: $(STAMP)   ## mypy, strict
	$(BIN)/mypy

# The landscape that Model Analyzer's developers recorded (docs/sources.md).
LANDSCAPE ?= ../shared/data/resnet50_libtorch_titan_rtx.csv
bench: $(STAMP)  ## runs the benches one after the other and writes bench/results (hours; quiet machine)
	for bench in generator server twin screen store codec report ray_cost startup wire certificate study_coverage shares search gpu_changes; do \
	  echo "bench: $$bench"; $(BIN)/python bench/$$bench.py || exit 1; done
	@if [ -f "$(LANDSCAPE)" ]; then \
	  $(BIN)/python bench/landscape.py --table "$(LANDSCAPE)" && for budget in 6 10 16 20 40; do \
	  $(BIN)/python bench/replay.py --table "$(LANDSCAPE)" --latency-budget $${budget}ms \
	    --out bench/results/replay_$${budget}ms.json || exit 1; done; \
	else echo "left out: landscape, replay: there is no $(LANDSCAPE) (make bench LANDSCAPE=FILE)"; fi
	@echo "left out: service_contract: ten minutes of requests (python bench/service_contract.py)"
	@echo "left out: service_faults, service_load, service_watchers, service_journey: a service under faults and load"
	@echo "left out: demos: more than an hour of whole searches (python bench/demos.py)"
	@echo "left out: random_models: a minute and a half a model (python bench/random_models.py)"
	@echo "left out: random_triton: three minutes a model (python bench/random_triton.py)"
	@echo "left out: gpu: needs an NVIDIA GPU (make gpu-proof)"
	@echo "left out: scheduling, generators, senders: an hour on a real Triton (make tools)"
	@echo "left out: accelerators: a quarter of an hour, and OpenVINO (make tools)"
	@echo "left out: real_models: hours, and a package index"
	@echo "left out: cluster: 512 workers and lost machines (python bench/cluster.py)"
	@echo "left out: budgets: whole searches at several budgets (python bench/budgets.py)"
	@echo "left out: peers, servers: searches and load tests on a real Triton, step by step"
	@echo "left out: twin_live: measures in parts of minutes, one model and server at a time"

docs: $(STAMP)   ## writes the generated tables of docs/ and checks them against the code
	$(BIN)/python tools/write_reference.py

clean:           ## removes the environment and what the demo wrote
	rm -rf $(VENV) demo
