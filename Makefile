# SPDX-License-Identifier: Apache-2.0
# The two commands of the README, and the steps they are made of. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
JOBS ?= $(shell nproc)
# Files of tests at a time: one more than the cores, because a throw-away host is waited for most of its time.
WORKERS ?= $(shell echo $$(($$(nproc) + 1)))
PRESET ?= gpu
BUILD := build/$(PRESET)
# The engine's Python environment; known once `make setup` has run.
PYTHON = $(shell tests/env/setup.sh --print)/bin/python3
export KDTREE_BUILD = $(CURDIR)/$(BUILD)

.PHONY: help setup build test demo root torture fuzz fuzzers package check-format format tidy engine-report asan clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what the build and the tests need (idempotent; the only step that installs)
	@tests/env/setup.sh

build: setup ## build everything: programs, kernel for sm_90 and sm_120, torch op, tests
	KDTREE_PYTHON=$(PYTHON) cmake --preset $(PRESET)
	cmake --build --preset $(PRESET) -j $(JOBS)

fuzzers: setup
	KDTREE_PYTHON=$(PYTHON) cmake --preset fuzz && cmake --build --preset fuzz -j $(JOBS)

test: build fuzzers ## all tests: unit, kernel, patch, real systemd host, demo
	ctest --preset $(PRESET) -j $(JOBS) --timeout 600
	$(PYTHON) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests

demo: root build ## a throw-away host, from nothing to KDTREE_VERIFY=on, and a rollback
	$(PYTHON) tests/demo/demo.py

root:
	@[ "$$(id -u)" = 0 ] || { echo "$(firstword $(MAKECMDGOALS)): a throw-away systemd host needs root; what runs without it: make test (skips the host tests)" >&2; exit 3; }

torture: root build ## every verb, stopped at every change in every way (hours); writes tests/host/results/torture.json
	$(PYTHON) tests/torture/campaign.py --jobs $(JOBS) --record tests/host/results/torture.json $(TORTURE)

FUZZ_SECONDS ?= 600
fuzz: fuzzers ## each fuzzer for FUZZ_SECONDS; what it finds new goes into build/fuzz/found
	$(PYTHON) tests/fuzz/fuzz.py --seconds $(FUZZ_SECONDS)

package: setup ## the Debian package: build/release/kdtree_*.deb
	KDTREE_PYTHON=$(PYTHON) cmake --preset release && cmake --build --preset release -j $(JOBS)
	cpack --config build/release/CPackConfig.cmake -B build/release && rm -rf build/release/_CPack_Packages

check-format: ## clang-format, as CI checks it
	git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -r clang-format --dry-run --Werror

format: ## apply clang-format
	git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -r clang-format -i

tidy: setup ## clang-tidy, findings are errors
	KDTREE_PYTHON=$(PYTHON) cmake --preset tidy && cmake --build --preset tidy -j $(JOBS)

engine-report: setup ## what kdtree would find in SGLang's newest release (fetches its source, 39 MB)
	@newest=$$(tests/env/setup.sh --newest-source) && $(PYTHON) tests/contract/engine_report.py "$$newest"

asan: setup ## unit tests under the address and undefined-behaviour sanitizers
	KDTREE_PYTHON=$(PYTHON) cmake --preset asan && cmake --build --preset asan -j $(JOBS) && ctest --preset asan

clean: ## remove the build folder; the caches outside the tree stay
	rm -rf build
