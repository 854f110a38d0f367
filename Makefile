# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Everything that these targets make lies in .build and in the .venv folders. Nothing is read from, or written to,
# the home folder, and no ANSIBLE_* variable or configuration file of the caller has a say.

# The interpreter of every environment but that of `make sanity` (ansible-core needs 3.11 on the controller).
PYTHON ?=
# The interpreter of `make sanity`, see tests/tools/sanity.py.
SANITY_PYTHON ?=
# How many tests run side by side, as pytest-xdist has it.
PYTEST_WORKERS ?= auto
# What is handed to pytest in addition, for instance PYTEST_ARGS='-k borrow'.
PYTEST_ARGS ?=
# How many sequences `make models` runs: of plans in memory, and of modules as processes.
PLAN_SEQUENCES ?= 4000
MODULE_SEQUENCES ?= 200
# Which Molecule scenario `make test-hosts` runs: -s default, -s faults (reboots, cut links, drain), or --all.
SCENARIO ?= -s default
# Where the root file systems of the test hosts are kept.
HOSTS_DIR ?= $(CURDIR)/.build/hosts
export HOSTS_DIR
# Where the image of the guests is kept.
VM_DIR ?= $(CURDIR)/.build/vm
export VM_DIR
# How often `make fuzz` runs each target, and which ones (all by default).
FUZZ_RUNS ?= 100000
FUZZ_TARGETS ?=
# How many targets run side by side.
FUZZ_JOBS ?= 2
# Where chance starts in `make models` and `make fuzz`; empty for another place every time.
SEED ?=
# What `make demo` runs, with the environment's Python.
DEMO_RUNNER := extensions/demo/run.py

VENV := .venv
VENV_LINT := .venv-lint
VENV_SANITY := .venv-sanity
VENV_HOSTS := .venv-hosts
VENV_FUZZ := .venv-fuzz
COLLECTION := .build/collections/ansible_collections/iofabric/sharing
# Which packages mypy checks: those that run on a node.
MYPY_PACKAGES := -p ansible_collections.iofabric.sharing.plugins.module_utils
ifneq ($(wildcard roles/software_node/files/software_node),)
MYPY_PACKAGES += -p software_node
endif
PIP_INSTALL := -m pip install -qq --disable-pip-version-check --no-input

ifneq ($(findstring :,$(CURDIR)),)
$(error The path of this folder contains a colon, which separates folders in lists of them. Move it elsewhere)
endif

# The callers' own settings would make every machine another one.
$(foreach name,$(filter ANSIBLE_%,$(.VARIABLES)),$(eval unexport $(name)))
unexport PYTHONPATH PYTHONHOME PYTEST_ADDOPTS MYPYPATH VIRTUAL_ENV
export ANSIBLE_CONFIG := $(CURDIR)/.build/ansible.cfg
export ANSIBLE_HOME := $(CURDIR)/.build/ansible
export ANSIBLE_LOCAL_TEMP := $(CURDIR)/.build/ansible/tmp
export ANSIBLE_REMOTE_TEMP := $(CURDIR)/.build/ansible/tmp
export ANSIBLE_ASYNC_DIR := $(CURDIR)/.build/ansible/async
export ANSIBLE_COLLECTIONS_PATH := $(CURDIR)/.build/collections
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.build/hypothesis

.PHONY: help demo test models fuzz fuzz-keep lint sanity test-hosts test-roles prepare-hosts test-vm prepare-vm clean FORCE
.DELETE_ON_ERROR:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/demo.stamp $(COLLECTION) ## share devices between four software nodes on this machine
	$(VENV)/bin/python $(DEMO_RUNNER)

test: $(VENV)/dev.stamp $(COLLECTION) ## run all tests that need no root
	$(VENV)/bin/python -m pytest tests/unit -n $(PYTEST_WORKERS) --dist loadgroup -ra $(PYTEST_ARGS)

models: $(VENV)/dev.stamp $(COLLECTION) ## drive plans and modules with random sequences of wishes, faults and interruptions
	$(VENV)/bin/python -m pytest tests/models -n 2 --dist loadgroup -ra --plan-sequences $(PLAN_SEQUENCES) \
	  --module-sequences $(MODULE_SEQUENCES) $(if $(SEED),--hypothesis-seed=$(SEED)) $(PYTEST_ARGS)

IN_FUZZ = PYTHONPATH="$(CURDIR)/.build/collections" $(VENV_FUZZ)/bin/python -B -m ansible_collections.iofabric.sharing.tests.fuzz

fuzz: $(VENV_FUZZ)/fuzz.stamp $(COLLECTION) ## run parsers, servers and sysfs readers on inputs that Atheris makes up
	$(IN_FUZZ) --runs $(FUZZ_RUNS) --jobs $(FUZZ_JOBS) --seed $(or $(SEED),0) $(FUZZ_TARGETS)

fuzz-keep: $(VENV_FUZZ)/fuzz.stamp $(COLLECTION) ## keep in tests/fuzz/corpus what `make fuzz` found worth it
	$(IN_FUZZ).keep $(FUZZ_TARGETS)

lint: $(VENV_LINT)/lint.stamp $(COLLECTION) ## run ruff, mypy, shellcheck, yamllint, ansible-lint, antsibull-docs, antsibull-changelog, reuse
	@mkdir -p .build/home
	@HOME="$(CURDIR)/.build/home" PATH="$(CURDIR)/$(VENV_LINT)/bin:$$PATH" MYPYPATH="$(CURDIR)/roles/software_node/files" \
	  sh tests/tools/lint.sh $(MYPY_PACKAGES)

sanity: $(VENV_SANITY)/sanity.stamp ## run ansible-test sanity on the newest ansible-core, without an ignore file
	$(VENV_SANITY)/bin/python tests/tools/sanity.py

# Without the folders of temporary files on this machine: the hosts have their own.
IN_LAB = [ -t 1 ] || export NO_COLOR=1; env -u ANSIBLE_REMOTE_TEMP -u ANSIBLE_ASYNC_DIR HOME="$(CURDIR)/.build/home" \
  PATH="$(CURDIR)/$(VENV_HOSTS)/bin:$$PATH" python -B tests/hosts/hosts.py run

test-hosts: prepare-hosts $(VENV_HOSTS)/hosts.stamp $(COLLECTION) ## boot Debian hosts and run the Molecule scenarios on them, as root
	@mkdir -p .build/home
	$(VENV_HOSTS)/bin/python -m pytest -q tests/hosts/test_lab.py
	$(IN_LAB) python -m pytest -q tests/hosts/test_hosts.py
	$(IN_LAB) molecule test $(SCENARIO)

# First of all, since it is what tells that this machine cannot do it.
prepare-hosts: .build/python
	"$$(head -n 1 .build/python)" -B tests/hosts/hosts.py prepare

test-roles: prepare-hosts $(VENV_HOSTS)/hosts.stamp $(COLLECTION) ## run the roles lender and borrower, ci_environment, and units of cplane_server on Debian hosts, as root
	@mkdir -p .build/home
	$(IN_LAB) python -m pytest -q tests/hosts/test_roles.py
	$(IN_LAB) python -m pytest -q tests/hosts/test_ci_environment.py
	$(IN_LAB) python -m pytest -q tests/hosts/test_servers.py

test-vm: prepare-vm $(VENV)/dev.stamp $(COLLECTION) ## boot guests with NVMe controllers and run the modules in them
	$(VENV)/bin/python -m pytest tests/vm -ra $(PYTEST_ARGS)

prepare-vm: .build/python
	"$$(head -n 1 .build/python)" -B -m tests.vm prepare

clean: ## remove everything that the other targets made
	rm -rf .build .venv .venv-* .ansible .mypy_cache .pytest_cache .ruff_cache .hypothesis tests/output
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The link is relative, so that the folder can be moved and its name may contain spaces.
$(COLLECTION): .build/ansible.cfg
	@mkdir -p $(dir $@)
	@ln -sfn ../../../.. $@

# Without a configuration file of our own, one of the caller's would be found.
.build/ansible.cfg:
	@mkdir -p .build
	@: > $@

# An environment is made anew when its interpreter or the place of this folder changed: its scripts name both.
.build/python: FORCE
	@mkdir -p .build
	@sh tests/tools/find_python.sh 3.11 $(PYTHON) > $@.new || { cat $@.new >&2; rm $@.new; exit 1; }
	@pwd >> $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

.build/python-sanity: FORCE
	@mkdir -p .build
	@sh tests/tools/find_python.sh $(if $(SANITY_PYTHON),3.11,3.12) $(SANITY_PYTHON) > $@.new || { cat $@.new >&2; rm $@.new; \
	  echo "To run the tests of an older ansible-core instead: make sanity SANITY_PYTHON=python3" >&2; exit 1; }
	@pwd >> $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(VENV)/demo.stamp: requirements-demo.txt .build/python
	"$$(head -n 1 .build/python)" -m venv --clear $(VENV)
	$(VENV)/bin/python $(PIP_INSTALL) -r requirements-demo.txt
	@touch $@

$(VENV)/dev.stamp: requirements-dev.txt $(VENV)/demo.stamp
	$(VENV)/bin/python $(PIP_INSTALL) -r requirements-dev.txt
	@touch $@

$(VENV_LINT)/lint.stamp: requirements-lint.txt requirements-demo.txt .build/python
	"$$(head -n 1 .build/python)" -m venv --clear $(VENV_LINT)
	$(VENV_LINT)/bin/python $(PIP_INSTALL) -r requirements-lint.txt
	@touch $@

$(VENV_SANITY)/sanity.stamp: requirements-sanity.txt requirements-demo.txt .build/python-sanity
	"$$(head -n 1 .build/python-sanity)" -m venv --clear $(VENV_SANITY)
	$(VENV_SANITY)/bin/python $(PIP_INSTALL) -r requirements-sanity.txt
	@touch $@

$(VENV_HOSTS)/hosts.stamp: requirements-hosts.txt requirements-demo.txt .build/python
	"$$(head -n 1 .build/python)" -m venv --clear $(VENV_HOSTS)
	$(VENV_HOSTS)/bin/python $(PIP_INSTALL) -r requirements-hosts.txt
	@touch $@

$(VENV_FUZZ)/fuzz.stamp: requirements-fuzz.txt .build/python
	"$$(head -n 1 .build/python)" -m venv --clear $(VENV_FUZZ)
	$(VENV_FUZZ)/bin/python $(PIP_INSTALL) -r requirements-fuzz.txt
	@touch $@
