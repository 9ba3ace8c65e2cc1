# The commands people type. Everything is also reachable without make: scripts/setup.sh, then
#   cmake --preset release -DCMAKE_PREFIX_PATH="$(scripts/torch_prefix.sh)"
#   cmake --build --preset release
#   ctest --test-dir build/release

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

# Compile jobs: one a core, but no more than there are 2 GiB of free memory for (of the container, if it
# has a limit of its own). make JOBS=8 overrides.
JOBS ?= $(shell cat /proc/meminfo /sys/fs/cgroup/memory.max 2>/dev/null | \
  awk -v cores="$$(nproc 2>/dev/null || echo 1)" \
    'BEGIN {jobs = cores} \
     /^MemAvailable:/ && $$2 / 2097152 < jobs {jobs = int($$2 / 2097152)} \
     /^[0-9]+$$/ && $$1 / 2147483648 < jobs {jobs = int($$1 / 2147483648)} \
     END {print (jobs < 1 ? 1 : jobs)}')
# Tests at the same time. Tests of the runtime use several threads each.
TEST_JOBS ?= $(JOBS)
CTEST := ctest --output-on-failure --no-tests=error -j $(TEST_JOBS)

# `make demo` runs this command, and writes this page.
DEMO ?= train --model mobilenet_v2 --data fashion-mnist --input 64x1x32x32 --budget 50% --steps 300 \
  --optimizer adam --learning-rate 0.005 --schedule linear
DEMO_PAGE := build/demo.html

# make test TORCH=2.14.1 takes another version of PyTorch, in an environment and build folders of its own.
ifneq ($(TORCH),)
export REPRISE_TORCH_VERSION := $(TORCH)
SUFFIX := -$(TORCH)
endif
PYTHON_OF_TORCH := $(SUFFIX:%=-DPython_EXECUTABLE=$(CURDIR)/.venv%/bin/python)
PYTHON = "$$([ -x .venv$(SUFFIX)/bin/python ] && echo .venv$(SUFFIX)/bin/python || echo python3)"
BUILD := build/release$(SUFFIX)
DEMO_BUILD := build/demo$(SUFFIX)
ASAN_RUNTIME := build/asan-runtime$(SUFFIX)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' Makefile

.PHONY: setup
setup: ## install what the build needs: system packages, and LibTorch into .venv
	@scripts/setup.sh

# As setup, silent when there is nothing to do.
.PHONY: ready
ready:
	@scripts/setup.sh --quiet $(SETUP)

# Where LibTorch is. The file changes only when its content does, so that builds notice another LibTorch
# and nothing else.
build/torch_prefix$(SUFFIX): ready
	@mkdir -p build
	@prefix=$$(scripts/torch_prefix.sh); \
	if [ "$$prefix" != "$$(cat $@ 2>/dev/null || true)" ]; then echo "$$prefix" > $@; fi

# Ninja configures again by itself when a CMake file changes.
$(BUILD)/build.ninja $(DEMO_BUILD)/build.ninja: build/%$(SUFFIX)/build.ninja: build/torch_prefix$(SUFFIX) CMakePresets.json
	@echo "Configuring build/$*$(SUFFIX)"
	@cmake --preset $* -B build/$*$(SUFFIX) $(PYTHON_OF_TORCH) -DCMAKE_PREFIX_PATH="$$(cat build/torch_prefix$(SUFFIX))"
	@touch $@

# These builds have the core only: no LibTorch.
build/asan-ubsan/build.ninja build/tsan/build.ninja build/mutants/build.ninja: build/%/build.ninja: CMakePresets.json | ready
	@echo "Configuring build/$*"
	@cmake --preset $*
	@touch $@

$(ASAN_RUNTIME)/build.ninja: build/torch_prefix$(SUFFIX) CMakePresets.json
	@echo "Configuring $(ASAN_RUNTIME)"
	@cmake --preset asan-runtime -B $(ASAN_RUNTIME) -DCMAKE_PREFIX_PATH="$$(cat build/torch_prefix$(SUFFIX))"
	@touch $@

# LibTorch is not instrumented: containers that cross into it and back cannot be followed, and what it holds
# for good looks lost. Tests ask for memory that no machine has.
ASAN_BESIDE_TORCH := detect_container_overflow=0:detect_leaks=0:allocator_may_return_null=1

# Clang is for fuzzing and the second compiler of the packaging test: installed when one of them is asked for.
.PHONY: clang
clang:
	@scripts/setup.sh --quiet --clang

build/fuzz/build.ninja: CMakePresets.json | clang
	@echo "Configuring build/fuzz"
	@CXX=$$(command -v clang++-19 || echo clang++) cmake --preset fuzz
	@touch $@

.PHONY: build
build: $(BUILD)/build.ninja ## build everything into build/release
	@cmake --build $(BUILD) -j $(JOBS)

# A build folder of its own, for the two programs alone: compiled for the first time in a third of the time.
.PHONY: demo
demo: SETUP := --demo
demo: $(DEMO_BUILD)/build.ninja ## train a MobileNetV2 on Fashion-MNIST inside half of plain training's memory
	@echo "Compiling the two programs into $(DEMO_BUILD), the first time for some minutes"
	@$(PYTHON) scripts/build_progress.py $(DEMO_BUILD) $(JOBS)
	@echo "$(DEMO_BUILD)/reprise $(DEMO) --report $(DEMO_PAGE)"
	@$(DEMO_BUILD)/reprise $(DEMO) --report $(DEMO_PAGE)
	@echo; echo "The report, to look at in a browser:"; echo "$(CURDIR)/$(DEMO_PAGE)"

# What pytest and GoogleTest say of a test that failed stands at the end, too, where one looks first.
FAILURES = /^(FAILED|ERROR) |^\[  FAILED  \] .*\(/ { print } /: Failure$$/ { lines = 8 } lines-- > 0 { print }

.PHONY: test
test: build ## build and run the tests (what CI runs)
	@cd $(BUILD) && { $(CTEST) || { awk '$(FAILURES)' Testing/Temporary/LastTest.log; exit 8; }; }
	@echo "make test: all tests passed"

# The thread sanitizer of GCC 12 cannot start where the kernel spreads addresses too widely; setarch
# narrows that for one process, where it is allowed.
NARROW = $$(setarch -R true 2>/dev/null && echo setarch -R || true)

# Seconds for each target of the fuzzer.
FUZZ_SECONDS ?= 60

.PHONY: fuzz
fuzz: build/fuzz/build.ninja ## fuzz the readers of files and the planners, FUZZ_SECONDS each
	@cmake --build build/fuzz -j $(JOBS)
	@tests/fuzz/run.sh build/fuzz/reprise_fuzz $(FUZZ_SECONDS)

.PHONY: mutants
mutants: build/mutants/build.ninja ## break one line at a time and see that a named test notices
	@cmake --build build/mutants -j $(JOBS) --target reprise_core_tests reprise_fault_tests
	@tests/mutants/run.py build/mutants --jobs $(JOBS)

# The libraries lie in environments of their own, which see the PyTorch of .venv. Without them, make test skips
# these tests.
WITH_LIBRARIES := .venv-integrations$(SUFFIX)
WITH_MODELS := .venv-models$(SUFFIX)
$(WITH_LIBRARIES)/installed $(WITH_MODELS)/installed: .venv-%$(SUFFIX)/installed: requirements-%.txt | ready
	@echo "Installing the libraries that $< names into $(@D)"
	@.venv$(SUFFIX)/bin/python -m venv $(@D)
	@.venv$(SUFFIX)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/reprise_torch.pth"
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: test-integrations
test-integrations: build $(WITH_LIBRARIES)/installed ## test the integrations with Transformers, TRL, Accelerate and Lightning
	@PYTHONPATH=$(BUILD)/python OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(WITH_LIBRARIES)/bin/python -B -m pytest -q -rs \
	  -p no:cacheprovider tests/python/test_transformers.py tests/python/test_trl.py \
	  tests/python/test_accelerate.py tests/python/test_lightning.py
	@echo "make test-integrations: all tests passed"

# Not in continuous integration: it takes half an hour.
.PHONY: test-models
test-models: build $(WITH_MODELS)/installed ## train 40 models of Transformers, timm and torchvision, captured and plain (long)
	@PYTHONPATH=$(BUILD)/python OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(WITH_MODELS)/bin/python -B \
	  tests/models/run.py --output build/models $(MODELS)

.PHONY: packaging
packaging: clang ready ## build and run a project that uses Reprise, in every way, with both compilers
	@$(PYTHON) tests/packaging/packaging_test.py

WITH_WHEEL_TOOLS := .venv-wheel
$(WITH_WHEEL_TOOLS)/installed: requirements-wheel.txt | ready
	@echo "Installing what $< names into $(@D)"
	@.venv$(SUFFIX)/bin/python -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: wheel
wheel: ready $(WITH_WHEEL_TOOLS)/installed ## build a manylinux wheel into build/wheels and test it in empty environments
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) .venv$(SUFFIX)/bin/python packaging/wheel.py \
	  .venv$(SUFFIX)/bin/python $(WITH_WHEEL_TOOLS) build/wheels

.PHONY: test-full
test-full: build build/asan-ubsan/build.ninja $(ASAN_RUNTIME)/build.ninja build/tsan/build.ninja ## test, with every random case, sanitizers, mutants, packaging, fuzzing (long)
	@cd $(BUILD) && REPRISE_TEST_FULL=1 $(CTEST)
	@cmake --build build/asan-ubsan -j $(JOBS)
	@cd build/asan-ubsan && $(CTEST)
	@cmake --build $(ASAN_RUNTIME) -j $(JOBS) --target reprise_runtime_tests
	@OMP_NUM_THREADS=1 ASAN_OPTIONS=$(ASAN_BESIDE_TORCH) $(ASAN_RUNTIME)/reprise_runtime_tests --gtest_brief=1
	@cmake --build build/tsan -j $(JOBS)
	@cd build/tsan && $(NARROW) $(CTEST)
	@tests/mutants/run.py $(BUILD) --runtime
	@$(MAKE) --no-print-directory mutants packaging fuzz FUZZ_SECONDS=20
	@echo "make test-full: all tests passed, sanitizers were silent, mutants killed"

.PHONY: bench
bench: build ## run the benchmarks of docs/benchmarks.md
	@cmake --build $(BUILD) --target bench

# Not in continuous integration: it downloads 550 MB.
.PHONY: cuda-check
cuda-check: ready ## compile and link the runtime against a PyTorch for CUDA (no GPU needed, 550 MB to download)
	@JOBS=$(JOBS) scripts/cuda_check.sh

.PHONY: gpu-kit
gpu-kit: ready ## pack build/gpu-kit: builds, tests and benchmarks on a machine with a GPU and no network
	@$(PYTHON) scripts/gpu_kit/pack.py build/gpu-kit

.PHONY: docs
docs: ready ## build the documentation as a site into build/site; list old tables
	@[ -x .venv/bin/python ] || { echo "make docs needs .venv: python3 -m venv .venv" >&2; exit 1; }
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict
	@echo "Stored tables that are older than a change of what they measure:"
	@.venv/bin/python scripts/stored_tables.py
	@echo "make docs: open build/site/index.html"

.PHONY: format
format: ## format the C++ sources (needs clang-format, which nothing else does)
	@command -v clang-format >/dev/null || \
	  { echo "make format needs clang-format; on Debian: apt-get install clang-format" >&2; exit 1; }
	@git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cc' | \
	  xargs -0 -r sh -c 'for f; do [ ! -f "$$f" ] || echo "$$f"; done' sh | \
	  xargs -r -d '\n' clang-format -i

.PHONY: clean
clean: ## remove build/ (.venv stays)
	rm -rf build
