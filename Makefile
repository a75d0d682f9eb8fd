# Two commands do everything on a machine with Python, Go and make: `make demo` and `make test`.
# What they need is installed into .venv, and the control plane is built once into the user's cache.

PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(shell $(name) -c 'import sys; print("$(name)" if sys.version_info >= (3, 11) else "")' 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OTHER_PYTHONS := python3.11 python3.12 python3.13 python3.14
FAST_TESTS := tests/unit tests/planner tests/operator
# Temporary files of tests stay in the tree, where make clean finds them.
IN_TREE := --basetemp=.pytest_tmp

.DEFAULT_GOAL := help
.PHONY: help setup demo e2e test test-vllm test-fast test-pythons lint format generate dashboards screenshots site bench audit sbom clean krew image test-kind test-realnode

help: ## Say what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | while IFS='|' read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done

setup: $(STAMP) ## Install everything into .venv, with the rljob command

$(STAMP): pyproject.toml runtime/pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or name it with make PYTHON=/path/to/python3"; exit 1; }
	@echo "Installing into $(VENV) with $$($(PYTHON) --version); the first time this takes about two minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --editable '.[operator]' --editable ./runtime --group dev
	@echo "Compiling the simulator, which takes up to half a minute"
	@$(BIN)/python -c 'from rljob_planner.simulate import warm_up; warm_up()'
	@touch $(STAMP)
	@echo "Done: source $(VENV)/bin/activate, then rljob --help"

demo: setup ## Run the main job: plan, deploy and rebalance a 64-GPU job on a local control plane
	@$(BIN)/python -m dev.demo

# Installs vLLM's build for the CPU into the user's cache on first use. NODE=real|processes: where pods run; by default in containers where this machine can be a node.
e2e: setup ## Run real vLLM samplers and a real training loop under the operator: grow, move, drain, kill; writes .demo/e2e.json
	@$(BIN)/python -m dev.e2e $(if $(NODE),--node $(NODE))

test: setup ## Run all tests that need no vLLM, those against the local control plane included
	@$(BIN)/python -m pytest $(IN_TREE) -m 'not vllm'

# Installs vLLM's build for the CPU on first use (4 minutes, 5 GB); times are real, so nothing else should run beside them.
test-vllm: setup ## Run the tests against a real vLLM: contract, drain, calibration, the examples, and all of make e2e
	@$(BIN)/python -m pytest $(IN_TREE) -m vllm tests/e2e

test-fast: setup ## Run the tests that need no control plane
	@$(BIN)/python -m pytest $(IN_TREE) $(FAST_TESTS)

# Leaves with 0 and says why where there is no container engine. SPECS: what to run there, as arguments of pytest.
test-kind: setup ## Run the cluster's tests on a kind cluster, with the image and the chart in it; needs a container engine
	@$(BIN)/python -m dev.kind $(SPECS)

# Root, and: apt-get install --no-install-recommends containerd runc containernetworking-plugins iptables buildah
test-realnode: setup ## Run the chart's own pods on a kubelet of this machine; needs root, and changes kernel settings while it runs
	@RLJOB_REALNODE=1 $(BIN)/python -m pytest $(IN_TREE) tests/chart/test_realnode.py

test-pythons: ## Run the tests that need no control plane on every supported Python that is there
	@for python in $(OTHER_PYTHONS); do \
	  $$python -c 'pass' 2>/dev/null || { echo "$$python is not here"; continue; }; \
	  venv=$(VENV)-$${python#python}; \
	  test -x $$venv/bin/python || $$python -m venv $$venv; \
	  $$venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' && \
	  $$venv/bin/python -m pip install --quiet --editable '.[operator]' --editable ./runtime --group dev && \
	  $$venv/bin/python -m pytest -q $(IN_TREE) $(FAST_TESTS) || exit 1; \
	done

lint: setup ## Check style, types and the directions of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy planner/rljob_planner operator/rljob_operator runtime/rljob_runtime dev
	@$(BIN)/lint-imports

format: setup ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

generate: setup ## Write the files that are generated: CRD, JSON Schemas, the chart's README, and the pages of docs with their figures
	@$(BIN)/python -m dev.crds
	@$(BIN)/python -m dev.chart
	@$(BIN)/python -m dev.installer_role
	@$(BIN)/python -m dev.schemas
	@$(BIN)/python -m dev.docs
	@$(BIN)/python -m dev.dashboards

dashboards: setup ## Write the Grafana dashboards of the chart, and what docs/dashboards.md says of their panels
	@$(BIN)/python -m dev.dashboards

screenshots: dashboards ## Draw the dashboards for the docs with Grafana's components; needs Node.js and Chromium
	@$(BIN)/python -m dev.dashboards.render

site: setup ## Build the documentation as a site into site/; SITE_REPO_URL=https://… says where the repository lies
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir site
	@echo site/index.html

bench: setup ## Measure the speed of the planner, beside the plain simulator in the same run
	@$(BIN)/python -m dev.bench.planner

krew: setup ## Build the krew plugin into dist/krew; URL=https://… says where the archive will lie
	@$(BIN)/python -m dev.krew $(if $(URL),--url '$(URL)')

sbom: setup ## List what the operator is made of, with licences, as CycloneDX in dist/sbom.cdx.json
	@mkdir -p dist
	@$(BIN)/python -m dev.sbom > dist/sbom.cdx.json
	@echo dist/sbom.cdx.json

# Asks the advisories of the Python Packaging Index, so it needs the network; it is no part of the tests. Strict: a package that nobody could
# answer for (an index without advisories, as mirrors are) is a failure, and never a clean bill.
audit: setup ## Look up known vulnerabilities of what the operator is made of
	@mkdir -p dist
	@$(BIN)/python -m dev.sbom --pins > dist/pins.txt
	@$(BIN)/pip-audit --strict --requirement dist/pins.txt --no-deps --disable-pip --progress-spinner off

COMMA := ,
ENGINE ?= $(firstword $(foreach name,docker podman buildah,$(shell command -v $(name) 2>/dev/null)))
IMAGE ?= rljob-operator:$(shell sed -n 's/^appVersion: *"*\([^"]*\)"*/\1/p' charts/rljob-operator/Chart.yaml)

image: ## Build the operator's image; IMAGE=name:tag, ENGINE=docker|podman|buildah, BASE=another image with Python
	@test -n "$(ENGINE)" || { echo "Building an image needs docker, podman or buildah on PATH"; exit 1; }
	@$(ENGINE) build --file Containerfile $(if $(BASE),--build-arg BASE=$(BASE)) $(if $(PIP_CONFIG),--secret id=pip$(COMMA)src=$(PIP_CONFIG)) \
	  --build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) --tag $(IMAGE) .

clean: ## Remove what make has made here (the cache with the control plane stays)
	@rm -rf $(VENV) $(VENV)-* .demo build dist site .mypy_cache .ruff_cache .pytest_cache .pytest_tmp .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
