# Every target works from a fresh clone and sets up what it needs. `make` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv/bin
SCENARIO ?= default
PLAYBOOKS_LINTED_LATER := molecule/ examples/
LINK := .build/link/ansible_collections/accel
STAGE := .build/stage/ansible_collections/accel/kubernetes
KUBE_ACCEL := roles/gpu_plugins/files/kube_accel

export PATH := $(CURDIR)/$(VENV):$(PATH)
export PYTHONPATH := $(CURDIR)/tests
export ANSIBLE_COLLECTIONS_PATH := $(CURDIR)/.build/link
export ANSIBLE_HOME := $(CURDIR)/.cache/ansible
export ANSIBLE_NOCOWS := 1
export ANSIBLE_PIPELINING := 1
# Where it is set, every start of Python compiles anew what it imports: twice the time that the import takes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo playground pictures docs docsite test test-ci test-full lint lint-playbooks sanity sanity-pylint importer molecule pytest attacks test-cluster soak churn bench native image bundle clean

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: .build/ready ## Create the Python environment, and unpack the tools that tests use.

.build/ready: requirements.txt requirements-dev.txt $(KUBE_ACCEL)/pyproject.toml tests/tools/setup.sh
	@tests/tools/setup.sh $(PYTHON)
	@mkdir -p $(LINK) && ln -sfn ../../../.. $(LINK)/kubernetes
	@touch $@

# STORY=long also runs the site twice.
demo: setup ## Run the product on a simulated cluster, without a GPU or root. STORY=long tries all modes.
	@python -m demo $(STORY)

playground: setup ## Start the demo's cluster, and keep it until Ctrl-C. START=bare stops before the first site.
	@python -m demo.playground $(START)

# A test compares the pictures. Only the report's needs Chromium.
pictures: setup ## Draw docs/images again. Needs Chromium on PATH.
	@python -m pictures

# Tests compare what this writes: docs/variables.md, docs/reference/modules.md and alerts.md, and tables of metrics.md.
docs: setup ## Generate the reference pages of variables, modules, metrics, and alerts.
	@PYTHONPATH=$(PYTHONPATH):$(KUBE_ACCEL)/src python tests/tools/metrics_table.py
	@python tests/tools/variables.py
	@python tests/tools/modules.py

# In an environment of its own.
docsite: setup ## Build all pages as HTML with a search, in .build/docsite/html.
	@tests/tools/docsite/build.sh

# pytest runs beside the steps, some of which keep one core busy. It takes the longest, and so speaks last.
test: setup ## Run linters, sanity, the demo, and unit tests before a push: 6 minutes.
	@printf '== pytest: all that calls functions, beside lint, sanity, and the demo\n'
	@$(MAKE) --no-print-directory --jobs=4 step-lint step-sanity step-demo pytest || \
	  { grep --no-filename '^== .*: FAILED' .cache/steps/*.log; exit 1; }

test-ci: setup ## Run molecule, the docs site, and tests that start Ansible and daemons: 30 minutes.
	@$(MAKE) --no-print-directory --jobs=2 step-lint-playbooks step-sanity-pylint step-docsite step-molecule
	@printf '== pytest: what starts Ansible, daemons and servers\n'
	@$(MAKE) --no-print-directory pytest MARKS="ci and not full"

# Every Python at hand, galaxy-importer, all scenarios of molecule (some need mmdebstrap), and the tests that take minutes.
# One of them builds AWX's image: dockerd.
test-full: setup test test-ci ## Run every test that needs no cluster. Some need root.
	@tests/tools/sanity.sh $(STAGE) --python default
	@$(MAKE) --no-print-directory importer
	@$(MAKE) --no-print-directory molecule SCENARIO="$(filter-out default,$(notdir $(patsubst %/molecule.yml,%,$(wildcard molecule/*/molecule.yml))))"
	@$(MAKE) --no-print-directory pytest MARKS="full"

step-%: setup
	@tests/tools/step.sh $* $(MAKE) --no-print-directory $*

# ansible-lint (production), yamllint, ruff, clang-format, PyMarkdown, and the lengths of lines and sentences.
lint: setup ## Run linters, mypy, and the checks of prose. lint-playbooks has the rest.
	ruff check .
	ruff format --check .
	git ls-files '*.c' '*.h' | xargs clang-format --dry-run --Werror
	antsibull-changelog lint
	mypy
	yamllint --strict .
	git ls-files '*.md' | xargs pymarkdown scan
	python tests/tools/prose.py
	ansible-lint --strict $(addprefix --exclude ,$(PLAYBOOKS_LINTED_LATER))

# ansible-lint starts Ansible for each playbook.
lint-playbooks: setup ## Run ansible-lint on the playbooks of molecule and of the examples.
	ansible-lint --strict $(PLAYBOOKS_LINTED_LATER)

sanity: setup ## Run ansible-test sanity on a copy of the collection. sanity-pylint has the rest.
	@tests/tools/sanity.sh $(STAGE) --skip-test pylint

# It takes two thirds of sanity's time.
sanity-pylint: setup ## Run the pylint of ansible-test sanity.
	@tests/tools/sanity.sh $(STAGE) --test pylint

importer: setup ## Run galaxy-importer on the built collection, as Galaxy does.
	@tests/tools/importer.sh

molecule: setup ## Run molecule scenarios on a simulated cluster: make molecule [SCENARIO="scheduler monitoring"].
	@$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,--jobs=2) $(if $(word 2,$(SCENARIO)),--output-sync=target) $(addprefix molecule-,$(SCENARIO))

molecule-%: setup
	@# Named, since molecule empties this directory: an inherited or empty value would name another.
	cd $(LINK)/kubernetes && MOLECULE_EPHEMERAL_DIRECTORY=$(CURDIR)/.cache/molecule/$* python -m sim.forks molecule test -s $*

pytest: setup ## Run the tests that call functions, or others: make pytest [MARKS="ci and not full"].
	@env --unset=MAKEFLAGS pytest --ignore tests/cluster --numprocesses=$(or $(WORKERS),3) --dist=loadfile -m '$(or $(MARKS),not ci and not full)'

# Prints how many attacks it tried. Tenants with uid 0 need root.
attacks: setup ## Run every test that attacks the shipped commands. Needs root.
	pytest --ignore tests/cluster -m attack

# What Kubernetes 1.34 and 1.35 have off by themselves.
OLD_GATES = DRAConsumableCapacity=false,DRAPartitionableDevices=false,DRADeviceTaints=false,DRAExtendedResource=false

test-cluster: setup ## Run the tests on a real one-node Kubernetes. Needs root and the binaries of Kubernetes.
	@if [ "$$(id -u)" = 0 ] && [ -x "$${KUBEBUILDER_ASSETS:-/usr/local/kubebuilder/bin}/kubelet" ]; then \
	  tests/tools/image.sh && python -m hosts containerd .cache/containerd-2 && \
	  tests/tools/machine.sh pytest -m 'not soak' tests/cluster && \
	  RIG_CONTAINERD=$(CURDIR)/.cache/containerd-2 tests/tools/machine.sh pytest $(addprefix tests/cluster/test_,cdi.py pgpu.py confined.py attacks.py dra.py dra_versions.py dra_mig.py dra_mig_made.py) && \
	  RIG_CONTAINERD=$(CURDIR)/.cache/containerd-2 tests/tools/machine.sh pytest tests/cluster/test_tutorial.py && \
	  RIG_CONTAINERD=$(CURDIR)/.cache/containerd-2 tests/tools/machine.sh pytest tests/cluster/test_switch.py && \
	  RIG_GATES=$(OLD_GATES) RIG_CONTAINERD=$(CURDIR)/.cache/containerd-2 tests/tools/machine.sh pytest $(addprefix tests/cluster/test_,dra.py dra_versions.py); \
	  else pytest -m 'not soak' tests/cluster; fi

# Ten thousand steps of a plugin and what it lives with, damaged files of daemons and hosts, and calls of the interposer.
soak: setup ## Try random steps, damaged files, and random questions for an hour.
	KUBE_ACCEL_EXAMPLES=250 pytest tests/unit/kube_accel/plugin/test_stateful.py
	KUBE_ACCEL_FUZZ_SECONDS=600 KUBE_ACCEL_FUZZ_SEED=$$RANDOM pytest tests/native/test_fuzz.py
	KUBE_ACCEL_FUZZ_SECONDS=240 KUBE_ACCEL_FUZZ_SEED=$$RANDOM pytest tests/unit/plugins/module_utils/test_mutations.py

# 10 minutes in each fractional mode.
churn: setup ## Start and end 100 pods on a one-node Kubernetes while the daemons are killed. Needs root.
	@tests/tools/image.sh && python -m hosts containerd .cache/containerd-2 && \
	  tests/tools/machine.sh pytest -s tests/cluster/test_churn.py && \
	  RIG_CONTAINERD=$(CURDIR)/.cache/containerd-2 tests/tools/machine.sh pytest -s tests/cluster/test_churn_dra.py

bench: setup ## Measure the shipped commands from outside, all or one: make bench [BENCH=plugin].
	@python -m bench$(addprefix .,$(BENCH)) $(BENCH_ARGS)

native: ## Compile the interposer into .build/native: make native [ARCH=aarch64].
	$(KUBE_ACCEL)/native/build.sh .build/native/$(or $(ARCH),$(shell uname -m)) $(ARCH)

image: setup ## Build the daemons' image archive: make image [BASE=directory or archive] [ARCH=arm64].
	@tests/tools/image.sh

bundle: image ## Pack what a network without internet access needs: make bundle [BASE=...] [ARCH=arm64].
	@python -m bundle

clean: ## Remove what the other targets made.
	rm -rf .build .cache .venv .hypothesis .*_cache
