# `make run` does the main job on real data, `make test` passes the tests; both set everything up.
# Needed: Python 3.11, git, make; make PYTHON=3.12 or 3.13 uses that one. Caches of uv are reused where they are.

UV_VERSION = 0.13.9
UV = $(shell command -v uv || echo .tools/bin/uv)
READY = .venv/.ready

.DEFAULT_GOAL := help
PYTHON ?= 3.11
.PHONY: help setup run test test-trainer test-uploader test-install test-cluster fuzz lint compile clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY) ## uv, the virtual environment, the locked dependencies

$(READY): pyproject.toml uv.lock
	@command -v uv >/dev/null || test -x .tools/bin/uv || \
		{ $$(command -v python3.11 || command -v python3) -m venv .tools && .tools/bin/pip install --quiet uv==$(UV_VERSION); }
	$(UV) sync --locked --all-extras --python $(PYTHON)
	@touch $@

run: $(READY) ## prepare, train with a chief and a worker, judge and publish on the digits
	.venv/bin/python -m examples.digits digits.csv
	.venv/bin/kfp-tfjob run --data digits.csv --label digit

# Tests also wait for seconds to pass: three processes keep two cores busy.
test: $(READY) ## lint, unit tests and tests with real processes and a real S3 server
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-trainer: $(READY) ## the long proofs of the trainer: 20 kills, late peers, wrong input everywhere, memory
	.venv/bin/python -m pytest -m slow -o log_cli=true -o log_cli_level=INFO \
		tests/local/test_trainer_*.py tests/local/test_supervisor*.py tests/local/test_step_*.py

test-uploader: $(READY) ## the long proofs of the uploader: 200 kills, every fault on two S3 servers
	.venv/bin/python -m pytest -m "slow or not slow" -o log_cli=true -o log_cli_level=INFO -k uploader

test-install: $(READY) ## the wheel in empty environments: each extra alone, and a run on a CSV
	.venv/bin/python -m pytest -m slow tests/install

test-cluster: $(READY) ## tests on a real control plane: root, Linux and Go, or KUBECONFIG of a cluster
	.venv/bin/python -m tests.cluster $(ARGS)

fuzz: $(READY) ## hostile input for FUZZ_SECONDS, 20 minutes unless said: names, CSV, Parquet, zips, ...
	.venv/bin/python -m pytest -m fuzz -n 2 --dist load tests/fuzz

lint: $(READY) ## format and check the code
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

compile: $(READY) ## the YAML that is uploaded to Kubeflow Pipelines
	.venv/bin/kfp-tfjob compile

clean: ## everything that was set up or left by runs
	rm -rf .venv .tools .kfp-tfjob digits.csv
