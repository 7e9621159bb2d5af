# `make run` runs the pipeline on real data, `make test` runs the tests; both set everything up.
# Required: Python 3.11, 3.12 or 3.13, git, make. Existing uv caches are reused.

# The Pythons of pyproject.toml, the preferred one first. PYTHON=3.13 or a path chooses another,
# which uv downloads if this machine lacks it.
PYTHONS = 3.11 3.12 3.13
PYTHON ?=
UV_VERSION = 0.13.9
UV = $(shell command -v uv || echo .tools/bin/uv)
READY = .venv/.ready
# Of Go, whose checksum database knows them; `make release-tools` builds the first two.
COSIGN = github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3
SYFT = github.com/anchore/syft/cmd/syft@v1.57.1
ACTIONLINT = github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
# A long proof repeats runs and kills, so its tests get an hour each in place of pyproject's 10 minutes.
SLOW = -m slow --timeout 3600

# Containers often forbid bytecode. Then every process recompiles TensorFlow, which takes seconds.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help setup python run pictures test test-prepare test-trainer test-uploader test-registry test-statistics test-stores test-aws test-mlflow test-torch test-serve test-install test-docs test-cluster test-kinds test-kueue test-kfp test-gpu fuzz lint images compile docs version notes assets release-tools sign-images sign-assets lint-workflows clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY) ## install uv, the virtual environment and the locked dependencies

$(READY): pyproject.toml uv.lock
	@command -v uv >/dev/null || test -x .tools/bin/uv || { \
		for python in $(PYTHON) $(PYTHONS:%=python%) python3; do \
			"$$python" -m venv --clear .tools >/dev/null 2>&1 && \
				.tools/bin/pip install --quiet uv==$(UV_VERSION) && exit; \
		done; \
		echo "make: uv cannot be installed. Expected: a Python with venv, and PyPI. Fix: install python3-venv, or uv" >&2; \
		exit 1; }
	@python=$$($(MAKE) --silent --no-print-directory python) && \
		$(UV) sync --locked --extra local --extra serve --python "$$python"
	@touch $@

# Not an installed Python's name alone decides: pyenv has commands for versions that are not active.
python: ## print the Python that setup takes: 3.11, or else 3.12 or 3.13
	@test -z '$(PYTHON)' || { echo '$(PYTHON)'; exit; }; \
	for version in $(PYTHONS); do \
		$(UV) python find --system --no-project --no-python-downloads $$version 2>/dev/null && exit; \
	done; \
	echo "make: there is no suitable Python. Expected: one of $(PYTHONS). Fix: install one, or let uv download one: make setup PYTHON=3.13" >&2; \
	exit 1

run: $(READY) ## run the pipeline on the digits: prepare, train, evaluate, publish
	.venv/bin/python -m examples.digits digits.csv
	.venv/bin/kfp-tfjob run --data digits.csv --label digit

pictures: $(READY) ## run the pipeline on the digits twice, and make docs/pictures/ from it with Debian's chromium
	.venv/bin/python -m tests.docs.pictures

# Some tests only wait, so four processes keep two cores busy. The other folders hold long tests
# only, and each process would import them.
test: $(READY) ## run lint, unit tests, and tests with real processes and a real S3 server
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder \
		tests/docs tests/fuzz tests/local tests/unit

test-prepare: $(READY) ## run the long proof of prepare_data: 78 kills of the step and its processes
	.venv/bin/python -m pytest $(SLOW) -o log_cli=true -o log_cli_level=INFO \
		tests/local/test_prepare_*.py

test-trainer: $(READY) ## run the long tests of the trainer: 20 kills, wrong input, memory, recurring runs
	.venv/bin/python -m pytest $(SLOW) -o log_cli=true -o log_cli_level=INFO \
		tests/local/test_trainer_*.py tests/local/test_supervisor*.py tests/local/test_step_*.py \
		tests/local/test_launch_setup.py tests/local/test_local_run*.py tests/local/test_home_runs.py tests/local/test_new_column_type.py \
		tests/local/test_picture_run.py

test-uploader: $(READY) ## run the long tests of the uploader: 200 kills, faults on two S3 servers
	.venv/bin/python -m pytest -m "not cluster" --timeout 3600 -o log_cli=true -o log_cli_level=INFO -k uploader

test-registry: $(READY) ## run the long tests of published models: a kill at every write, rollbacks during runs
	.venv/bin/python -m pytest $(SLOW) -o log_cli=true -o log_cli_level=INFO tests/local/test_registry.py \
		tests/local/test_prune.py tests/local/test_shared_home.py

test-statistics: $(READY) ## simulate what the gate claims: coverage, equal models, slices
	.venv/bin/python -m pytest $(SLOW) -rP -o log_level=INFO -n 2 --dist loadgroup \
		tests/unit/test_evaluate_statistics.py tests/unit/test_gate_statistics.py

test-publish: $(READY) ## run the long proof of publish: 50 publishers at once, kills at every write, on two S3 servers
	.venv/bin/python -m pytest $(SLOW) -o log_cli=true -o log_cli_level=INFO \
		tests/local/test_publish_race.py

test-stores: $(READY) ## run the tests of the store on Swift, versitygw and SeaweedFS; STORES="swift https://HOST/BUCKET" chooses
	.venv/bin/python -m tests.stores $(ARGS)

test-aws: $(READY) ## run the documented IAM policy and the pods' roles on moto's STS, IAM and S3, in its own environment
	.venv/bin/python -m pytest $(SLOW) -o log_cli=true -o log_cli_level=INFO tests/stores/test_aws.py

test-mlflow: $(READY) ## run the mirrors of the champions, and trainings that MLflow follows: its own server on SQLite
	.venv/bin/python -m pytest $(SLOW) -o log_cli=true -o log_cli_level=INFO tests/mirrors

test-torch: $(READY) ## run the example with torch on two replicas, one of which is killed; installs 3 GB of torch
	.venv/bin/python -m pytest $(SLOW) -o log_cli=true -o log_cli_level=INFO tests/torch

test-serve: $(READY) ## run the server of the champion as a process
	.venv/bin/python -m pytest $(SLOW) -o log_cli=true -o log_cli_level=INFO tests/serve

test-install: $(READY) ## install the wheel into empty environments: each extra alone, and a run on a CSV
	.venv/bin/python -m pytest $(SLOW) tests/install

test-docs: $(READY) ## run the slow commands of the documents, and the examples for CI systems and DVC
	.venv/bin/python -m pytest $(SLOW) tests/docs tests/local/test_ci_examples.py tests/local/test_dvc_example.py

test-cluster: $(READY) ## run tests on a real control plane, one of them in Kueue; needs root, Linux and Go
	.venv/bin/python -m tests.cluster $(ARGS)

test-kinds: $(READY) ## compare the weights of TFJob, JobSet and a local run on the cluster of test-cluster, also after KILLS kills each
	KILLS=$(or $(KILLS),10) .venv/bin/python -m tests.cluster -m "cluster and slow" $(ARGS)

test-kueue: $(READY) ## run all tests of jobs in the queues of a real Kueue on the cluster of test-cluster
	.venv/bin/python -m tests.cluster -m kueue -n 0 $(ARGS)

# TensorFlow for CPUs is enough for everything else, so CUDA is installed only where a GPU is.
test-gpu: $(READY) ## train on all GPUs of this machine and measure them, in ten minutes at most; without one, print the plan
	@! command -v nvidia-smi >/dev/null || \
		$(UV) sync --locked --extra local --extra serve --extra gpu --python .venv
	.venv/bin/python -m tests.gpu

test-kfp: $(READY) ## run the pipeline on Kubeflow Pipelines: KF_PIPELINES_ENDPOINT, KUBECONFIG, TEST_KFP_BUCKET, images
	.venv/bin/python -m tests.kfp $(ARGS)

fuzz: $(READY) ## search for harmful input for FUZZ_SECONDS, 20 minutes by default
	.venv/bin/python -m pytest -m fuzz --timeout 0 -n 2 --dist load tests/fuzz

lint: $(READY) ## format and check the code
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .
	.venv/bin/basedpyright --level error

images: $(READY) ## build the images for REGISTRY=...; PUSH=1 pushes, GPU=1 adds CUDA, SERVING=1 the server, BUILDER=docker|podman|buildah
	.venv/bin/python -m images.build --registry '$(REGISTRY)' $(if $(PUSH),--push) $(if $(GPU),--gpu) \
		$(if $(SERVING),--serving) $(if $(BUILDER),--builder '$(BUILDER)') $(if $(BASE),--base '$(BASE)') $(ARGS)

compile: $(READY) ## compile the YAML for Kubeflow Pipelines
	.venv/bin/kfp-tfjob compile

docs: $(READY) ## build the documentation as a site in site/; fails on a dead link
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

version: $(READY) ## set the version of the next release everywhere: NEW=0.3.0
	.venv/bin/python -m release.version '$(NEW)'
	.venv/bin/kfp-tfjob compile
	WRITE_DOCS=1 .venv/bin/python -m pytest -q tests/unit/test_docs_tables.py

notes: $(READY) ## print the changelog of this version; fails if TAG names another one
	.venv/bin/python -m release.changelog --tag '$(TAG)' --files '$(FILES)'

assets: $(READY) ## make the files of a release in dist/: REGISTRY=..., TAG=v0.3.0; without TAG, a rehearsal
	.venv/bin/python -m release.assets --registry '$(REGISTRY)' --tag '$(TAG)' --files '$(FILES)' --docs-url '$(DOCS_URL)' $(ARGS)

release-tools: ## build cosign and syft into .tools/bin; needs Go
	GOBIN=$(CURDIR)/.tools/bin go install $(COSIGN)
	GOBIN=$(CURDIR)/.tools/bin go install $(SYFT)

sign-images: $(READY) ## write SBOMs of the pushed images, and sign both; KEY=cosign.key signs without Sigstore
	.venv/bin/python -m release.sign images --key '$(KEY)' $(ARGS)

sign-assets: $(READY) ## sign dist/SHA256SUMS; KEY=cosign.key signs without Sigstore
	.venv/bin/python -m release.sign assets --key '$(KEY)' $(ARGS)

lint-workflows: ## check .github/workflows with actionlint; needs Go
	go run $(ACTIONLINT) -shellcheck= -pyflakes=

clean: ## remove the environment and all local runs
	rm -rf .venv .tools .kfp-tfjob site digits.csv
