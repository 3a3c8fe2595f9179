# A thin front for CMake; `make help` lists the targets. The work is described in CMakePresets.json.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := build

JOBS ?= $(shell nproc)
# Tests wait more than they compute. With JOBS=1 two run at once; TEST_JOBS=1 is one by one.
TEST_JOBS ?= $(shell echo $$((2 * $(JOBS))))
BENCH_ARGS ?=

# tools/install-deps puts a newer CMake there where the system's own is too old.
export PATH := $(CURDIR)/build/tools/bin:$(PATH)

# ThreadSanitizer needs a predictable address space; some containers forbid asking for one.
NO_ASLR := $(shell setarch -R true 2>/dev/null && echo setarch -R)

# The asan preset is for clang. Without clang, or without its runtime, the system's compiler serves.
asan_compiler = $$(echo 'int main() {}' | \
	clang++ -x c++ -fsanitize=address,undefined -o /dev/null - 2>/dev/null || \
	echo -DCMAKE_C_COMPILER=cc -DCMAKE_CXX_COMPILER=c++)

# $(1) preset. CMake forgets most options of a folder whose compiler changes, so that one starts anew.
configure_preset = mkdir -p build; log=build/$(1).configure.log; \
	options="--preset $(1) $(if $(filter asan,$(1)),$(asan_compiler))"; \
	cmake $$options >$$log 2>&1 || { cat $$log; exit 1; }; \
	if grep -q 'require your cache to be deleted' $$log; then \
		cmake --fresh $$options >$$log 2>&1 || { cat $$log; exit 1; }; fi

# $(1) preset  $(2) build target
build_preset = $(call configure_preset,$(1)); \
	cmake --build build/$(1) --parallel $(JOBS) --target $(2)

# $(1) preset  $(2) build target  $(3) which tests, as ctest options. The slowest files of the build are
# listed, and all in build/PRESET/times.txt; ctest ends with the time of each test and by label,
# and then it is told which single tests were skipped. What fails beside other tests is run once more,
# alone. Its first failure stays in the output.
run_tests = echo "== $(1): $(2) $(3)"; $(call build_preset,$(1),$(2)); \
	tests/tools/build_times.py build/$(1); \
	run="$(NO_ASLR) ctest --preset $(1)"; failed=; \
	$$run --parallel $(TEST_JOBS) $(3) || failed=yes; \
	tests/tools/skips.py build/$(1); \
	if [ $$failed ]; then \
		echo "== $(1): the tests that failed, once more, each alone"; \
		$$run --parallel 1 --rerun-failed; fi

# The interpreter that the Python package was built for.
python = $$(sed -n 's/^_\?Python_EXECUTABLE:[A-Z]*=//p' build/release/CMakeCache.txt | tail -1)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: deps
deps: ## install what is missing of compilers, libraries and tools (Debian, Ubuntu)
	@tools/install-deps

# Into build/venv; nothing where there is a torch already.
.PHONY: torch
torch: deps ## install what is missing, and torch (a CPU build, into build/venv) where there is none
	@tools/install-deps --torch

# Into build/opencl. Without it the tests use the system's run-time alone.
.PHONY: opencl
opencl: deps ## install a second run-time of OpenCL for the tests (800 MB)
	@tools/install-deps --opencl || true

.PHONY: build
build: ## the library and the tools, optimised: build/release/{lib,bin} (default)
	@$(call build_preset,release,all)

.PHONY: bench
bench: deps build ## build, then measure latency, bandwidth and a training beside Gloo (BENCH_ARGS=...)
	@build/release/bin/hetcomm_bench $(BENCH_ARGS)
ifeq ($(strip $(BENCH_ARGS)),)
	@if compgen -G 'build/release/python/hetcomm/_torch_*.so' >/dev/null; then \
		echo "== examples/train_compare.py --rounds 1 --steps 30"; \
		PYTHONPATH=build/release/python "$(python)" examples/train_compare.py --rounds 1 --steps 30; \
	else echo "== examples/train_compare.py is left out: no torch (make torch installs one)"; fi
endif

# Each quick test once: with memory checks where it is made for them, else in the ordinary build.
.PHONY: test
test: torch opencl ## every quick test, those of memory with memory checks (TEST_JOBS=n)
	@$(call run_tests,asan,tests-asan,--label-regex '^asan$$')
	@$(call run_tests,plain,tests-plain,--label-regex '^plain$$')

# A busy machine breaks these bounds. One test at a time.
.PHONY: test-timing
test-timing: torch opencl ## the tests of time: latency, shares, rates, processor time; on a quiet machine
	@$(call run_tests,dev,tests-timing,--label-regex '^timing$$')

.PHONY: test-all
# ThreadSanitizer makes tests ten times slower; it runs those with the label tsan.
test-all: torch opencl ## every test, those of time and the long ones too, and under the sanitizers
	@$(call run_tests,asan,all,)
	@$(call run_tests,tsan,tests-tsan,--label-regex '^tsan$$')
	@$(call run_tests,dev,all,)

.PHONY: mutants
mutants: torch ## break one promise at a time and see whether a test notices; hours (MUTANTS='name...')
	@tests/mutants/run.py $(MUTANTS)

.PHONY: peers
peers: ## install what the benchmarks compare with, into build/peers
	@tools/peers install build/peers

sources = $(shell git ls-files --cached --others --exclude-standard '*.h' '*.c' '*.cc')

.PHONY: format
format: ## format the sources in place
	@clang-format -i $(sources)

.PHONY: format-check
format-check: ## fail where `make format` would change something
	@clang-format --dry-run --Werror $(sources)

.PHONY: tidy
tidy: ## run clang-tidy over every source
	@$(call build_preset,clang,all)
	@run-clang-tidy -quiet -p build/clang -j $(JOBS)

.PHONY: clean
clean: ## remove what was built; keep installed tools and peers
	@rm -rf build/release build/dev build/plain build/clang build/asan build/tsan build/mutants build/*.configure.log
