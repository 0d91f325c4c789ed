# Every target works from a fresh clone and sets up what it needs. `make` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv/bin
SCENARIO ?= default
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

.PHONY: help setup demo playground pictures docs docsite test test-ci test-full lint sanity importer molecule pytest attacks test-cluster soak churn bench native image bundle clean

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: .build/ready ## Create the Python environment and the tools the tests use.

.build/ready: requirements.txt requirements-dev.txt $(KUBE_ACCEL)/pyproject.toml tests/tools/setup.sh
	@tests/tools/setup.sh $(PYTHON)
	@mkdir -p $(LINK) && ln -sfn ../../../.. $(LINK)/kubernetes
	@touch $@

demo: setup ## The main job, end to end, on a simulated cluster: no GPU, no cluster, no root. STORY=long: all modes, and the site twice.
	@python -m demo $(STORY)

playground: setup ## The demo's cluster, which stays up with a kubeconfig until Ctrl-C: for kubectl and the tutorials. START=bare: before the first site.
	@python -m demo.playground $(START)

pictures: setup ## Make docs/images anew, which a test compares; the report's needs a Chromium on PATH.
	@python -m pictures

docs: setup ## Write docs/variables.md, and modules, alerts, and tables of metrics in docs/reference, which tests compare.
	@PYTHONPATH=$(PYTHONPATH):$(KUBE_ACCEL)/src python tests/tools/metrics_table.py
	@python tests/tools/variables.py
	@python tests/tools/modules.py

docsite: setup ## All pages and the modules' documentation as HTML with a search, .build/docsite/html: an environment of its own.
	@tests/tools/docsite/build.sh

# pytest fills the time that the steps leave, so that both cores are always busy. It takes the longest, and so speaks last.
test: setup ## What to run before every push, in 6 minutes on two cores: linters, sanity, the whole site once, unit tests.
	@printf '== pytest: all that calls functions, beside lint, sanity, and the demo\n'
	@$(MAKE) --no-print-directory --jobs=4 step-lint step-sanity step-demo pytest || \
	  { grep --no-filename '^== .*: FAILED' .cache/steps/*.log; exit 1; }

test-ci: setup ## What CI runs after `make test`, in 30 minutes on two cores: molecule, and tests that start Ansible and daemons.
	@$(MAKE) --no-print-directory step-molecule
	@printf '== pytest: what starts Ansible, daemons and servers\n'
	@$(MAKE) --no-print-directory pytest MARKS="ci and not full"

test-full: setup test test-ci ## All of that, every Python at hand, galaxy-importer, every molecule scenario (some: root, mmdebstrap) and the tests that take minutes (one builds AWX's image: root, mmdebstrap, dockerd).
	@tests/tools/sanity.sh $(STAGE) --python default
	@$(MAKE) --no-print-directory importer
	@$(MAKE) --no-print-directory molecule SCENARIO="$(filter-out default,$(notdir $(patsubst %/molecule.yml,%,$(wildcard molecule/*/molecule.yml))))"
	@$(MAKE) --no-print-directory pytest MARKS="full"

step-%: setup
	@tests/tools/step.sh $* $(MAKE) --no-print-directory $*

lint: setup ## ansible-lint (production), yamllint, ruff, clang-format, mypy, PyMarkdown, and the length of sentences.
	ruff check .
	ruff format --check .
	git ls-files '*.c' '*.h' | xargs clang-format --dry-run --Werror
	antsibull-changelog lint
	mypy
	yamllint --strict .
	git ls-files '*.md' | xargs pymarkdown scan
	python tests/tools/prose.py
	ansible-lint --strict

sanity: setup ## ansible-test sanity on a copy of the collection.
	@tests/tools/sanity.sh $(STAGE)

importer: setup ## What Galaxy says of the collection: galaxy-importer on the archive.
	@tests/tools/importer.sh

molecule: setup ## The whole site on the simulated cluster, or other scenarios: make molecule [SCENARIO="scheduler gpu_plugins monitoring"]. Each directory of molecule with a molecule.yml is one.
	@$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,--jobs=2) $(if $(word 2,$(SCENARIO)),--output-sync=target) $(addprefix molecule-,$(SCENARIO))

molecule-%: setup
	@# Named, since molecule empties this directory: an inherited or empty value would name another.
	cd $(LINK)/kubernetes && MOLECULE_EPHEMERAL_DIRECTORY=$(CURDIR)/.cache/molecule/$* python -m sim.forks molecule test -s $*

pytest: setup ## The tests that call functions, or others: make pytest [MARKS="ci and not full"].
	@env --unset=MAKEFLAGS pytest --ignore tests/cluster --numprocesses=3 --dist=loadfile -m '$(or $(MARKS),not ci and not full)'

attacks: setup ## Every attack on the shipped commands that a test tries, and how many; root, for tenants with uid 0.
	pytest --ignore tests/cluster -m attack

test-cluster: setup ## On a real one-node Kubernetes, where its binaries are at hand; root.
	@if [ "$$(id -u)" = 0 ] && [ -x "$${KUBEBUILDER_ASSETS:-/usr/local/kubebuilder/bin}/kubelet" ]; then \
	  tests/tools/image.sh && python -m hosts containerd .cache/containerd-2 && \
	  tests/tools/machine.sh pytest -m 'not soak' tests/cluster && \
	  RIG_CONTAINERD=$(CURDIR)/.cache/containerd-2 tests/tools/machine.sh pytest $(addprefix tests/cluster/test_,cdi.py pgpu.py confined.py attacks.py); \
	  else pytest -m 'not soak' tests/cluster; fi

soak: setup ## Ten thousand random steps of a plugin and what it lives with, damaged files, of hosts too, and questions for the interposer; about an hour.
	KUBE_ACCEL_EXAMPLES=250 pytest tests/unit/kube_accel/plugin/test_stateful.py
	KUBE_ACCEL_FUZZ_SECONDS=600 KUBE_ACCEL_FUZZ_SEED=$$RANDOM pytest tests/native/test_fuzz.py
	KUBE_ACCEL_FUZZ_SECONDS=240 KUBE_ACCEL_FUZZ_SEED=$$RANDOM pytest tests/unit/plugins/module_utils/test_mutations.py

churn: setup ## On a real one-node Kubernetes: 100 pods come and go for 10 minutes in each fractional mode, and what serves them is killed in turn; root.
	@tests/tools/image.sh && tests/tools/machine.sh pytest -s tests/cluster/test_churn.py

bench: setup ## Measure the shipped commands from outside: make bench BENCH=plugin.
	@python -m bench.$(or $(BENCH),plugin) $(BENCH_ARGS)

native: ## The interposer, .build/native/<arch>: make native [ARCH=aarch64], by gcc of that architecture.
	$(KUBE_ACCEL)/native/build.sh .build/native/$(or $(ARCH),$(shell uname -m)) $(ARCH)

image: setup ## The daemons' image archive: make image [BASE=root file system or archive] [ARCH=arm64].
	@tests/tools/image.sh

bundle: image ## What a network without a way out needs, in one archive: make bundle [BASE=...] [ARCH=arm64].
	@python -m bundle

clean: ## Remove what the other targets made.
	rm -rf .build .cache .venv .hypothesis .*_cache
