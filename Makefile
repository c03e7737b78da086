# `make test` and `make demo` work in a fresh clone that has Python 3.11 or later and make. `make` lists the targets.
#
# PYTHON=python3.12  the interpreter that makes .venv; python3 at first
# CUDA=12            the CUDA version of the NVRTC in .venv; at first 13, which needs driver 580 or later
# EXTRAS=test        the extras of the package that .venv gets besides NVRTC
# JAX=0.12.0.1       the version of JAX for `make jax`; the default is the oldest that fastsgemm.jax supports
# VENV=              use PYTHON's own packages and install nothing
# ARCH=sm_90         the architecture of the kernels that `make pack` compiles
#
# .venv belongs to the version of its interpreter and to its CUDA version. It keeps both until PYTHON or CUDA asks for
# another, and is then made anew.

JAX ?= 0.10.1
VENV ?= .venv
EXTRAS ?= dev
ARCH ?= sm_90
BENCH_JSON ?= build/benchmarks.json

ifeq ($(VENV),)
PYTHON ?= python3
READY :=
RUN := $(PYTHON)
BIN :=
export PYTHONPATH := $(CURDIR)/src$(if $(PYTHONPATH),:$(PYTHONPATH))
else
# As in .ready-3.11-cu13: the version of the interpreter, then that of CUDA.
MADE_FOR := $(wordlist 2,3,$(subst -, ,$(notdir $(firstword $(wildcard $(VENV)/.ready-*-*)))))
BIN := $(VENV)/bin/
RUN := $(BIN)python
PYTHON ?= $(if $(MADE_FOR),$(RUN),python3)
CUDA ?= $(if $(MADE_FOR),$(patsubst cu%,%,$(word 2,$(MADE_FOR))),13)
VERSION_OF = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VERSION := $(call VERSION_OF,$(PYTHON))
READY := $(VENV)/.ready-$(VERSION)-cu$(CUDA)
endif

CPP := $(wildcard cuda_src/*.cu cuda_src/device/*.cuh host_src/*.h host_src/*.cpp tests/*/*.cpp)

.NOTPARALLEL:
.PHONY: help test test-all test-cpu test-slow test-gpu demo check nvrtc nvrtc-line lowest lint pack bench bench-check counts sass hostile tables torch jax jax-test docs site release-check clean

# target: what it does
define HELP
test         set up .venv on first use, then run the quick tests; GPU tests run if there is a GPU
test-all     the same, then the slow tests: every architecture, every shipped config, every barrier left out
test-gpu     only the tests that need a GPU
demo         set up .venv on first use, show the shipped result, and run the ladder on this GPU or on the simulated device
check        lint, types, documentation against its data, then the quick tests
lint         the same without the tests
nvrtc        run every rung on every simulated architecture with NVRTC 12 and NVRTC 13
lowest       do that with NVRTC 12 alone, and test the lowest versions of all dependencies
pack         build a wheel of compiled kernels of ARCH, at first sm_90, in build/; it takes minutes
bench        run the benchmarks and write $(BENCH_JSON)
bench-check  the same; fail if a figure fell by 5 % against the run on such a device in docs/data
tables       write the tables and figures of README.md and docs/ from $(BENCH_JSON)
counts       count what the rungs do on the simulated device, and write docs/ladder.md
sass         count the instructions of the main loops of rungs 9 and 11, and write docs/sass.md; needs nvdisasm
hostile      count what the tests in tests/hostile try, and write docs/simulated-device.md
docs         build the site in build/site; a dead link or a missing docstring fails
torch        add a CPU build of PyTorch to .venv, for the tests that use PyTorch
jax          test fastsgemm.jax with one version of JAX, in an environment of its own
release-check  build the wheel and try it in a new environment of every supported Python
clean        remove what these targets made
endef
export HELP

help:
	@echo "$$HELP"

# Several processes if pytest-xdist is installed. The tests without a GPU run last, so that the last line of the output
# counts tests that ran.
XDIST = $$($(RUN) -c "import xdist" 2>/dev/null && echo "$(1)")

test: test-gpu test-cpu

test-all: test test-slow

test-gpu: $(READY)
	@missing=$$($(RUN) tests/support/missing_device.py) || exit 1; \
	if [ -n "$$missing" ]; then echo "The GPU tests do not run: $$missing"; \
	else set -x; $(RUN) -m pytest -m gpu $(call XDIST,-n 8); fi

# --ignore saves the time to import files that have no such test; test-slow imports them, so that CI sees their errors.
test-cpu: $(READY)
	$(RUN) -m pytest -m "not gpu and not slow" --ignore tests/gpu $(call XDIST,-n auto --maxprocesses 8)

test-slow: $(READY)
	$(RUN) -m pytest -m "slow and not gpu" $(call XDIST,-n auto --maxprocesses 8)

demo: $(READY)
	$(RUN) -m fastsgemm

check: lint
	$(MAKE) --no-print-directory test

# One environment per CUDA version, so that neither is made anew each time. That of 12 has the lowest versions of all
# dependencies.
nvrtc:
	$(MAKE) --no-print-directory lowest
	$(MAKE) --no-print-directory nvrtc-line CUDA=13 VENV=.venv

lowest: export PIP_CONSTRAINT = tests/lowest.txt
lowest:
	$(MAKE) --no-print-directory nvrtc-line CUDA=12 VENV=.venv-cu12 EXTRAS=test
	.venv-cu12/bin/python -m pytest -m "not gpu and not slow" -n auto --maxprocesses 8 \
		tests/jit tests/heuristics tests/hostile tests/tuning/test_checkpoint.py

nvrtc-line: $(READY)
	$(RUN) -c "from fastsgemm import device; version = device.nvrtc_version(); print('NVRTC', version); assert version[0] == $(CUDA)"
	$(RUN) -m pytest tests/sim/test_architectures.py -n auto --maxprocesses 8

lint: $(READY)
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(BIN)clang-format --dry-run -Werror $(CPP)
	$(RUN) tools/write_tables.py --check
	$(RUN) tools/write_commands.py --check
	$(RUN) tools/write_rules.py --check
	$(RUN) tools/draw_rooms.py --check
	$(RUN) tools/draw_figures.py --check
	$(RUN) tools/draw_ladder.py --check
	$(RUN) tools/draw_diagrams.py --check

# What the shipped tuning database chooses, not this machine's own tuning results.
pack: $(READY)
	FASTSGEMM_DATA_DIR=build/no-tuning $(RUN) -m fastsgemm pack --arch $(ARCH) --out build

bench: $(READY)
	mkdir -p $(dir $(BENCH_JSON))
	$(RUN) -m pytest tests/benchmarks --benchmark-enable --benchmark-only --benchmark-json=$(BENCH_JSON)

bench-check: bench
	$(RUN) tools/check_benchmarks.py $(BENCH_JSON)

# With the shipped constants of the default simulated device, not with this machine's own tuning results. No rung's tile
# there exceeds 128 x 256. For a C smaller than its tile, rung 9 has a guarded variant: not the kernel of a large problem.
counts: $(READY)
	mkdir -p build
	FASTSGEMM_DATA_DIR=build/no-tuning FASTSGEMM_SIM_DEVICE= $(RUN) -m fastsgemm ladder --device sim --size 128,256,128 --json > build/counts.json
	mv build/counts.json docs/data/counts.json
	$(RUN) tools/write_tables.py
	$(RUN) tools/draw_ladder.py

sass: $(READY)
	FASTSGEMM_DATA_DIR=build/no-tuning $(RUN) tools/sass.py
	$(RUN) tools/write_tables.py

hostile: $(READY)
	FASTSGEMM_HOSTILE_JSON=docs/data/hostile.json $(RUN) -m pytest -q -m "not gpu" tests/hostile
	$(RUN) tools/write_tables.py

tables: $(READY)
	$(RUN) tools/write_tables.py $(BENCH_JSON)
	$(RUN) tools/draw_figures.py

# The version names the CPU build, because plain `torch` downloads gigabytes of CUDA libraries.
torch: $(READY)
	$(RUN) -m pip install --retries 1 --timeout 30 --extra-index-url https://download.pytorch.org/whl/cpu 'torch==2.13.0+cpu'

# An environment of its own, because JAX is tested in two versions. Its package for CUDA has the functions with which the
# description of a launch is compared; it needs no GPU, and the large packages that it depends on are left out.
jax: .venv-jax-$(JAX)/.ready
	$(MAKE) --no-print-directory jax-test VENV= PYTHON=.venv-jax-$(JAX)/bin/python

jax-test: export XLA_FLAGS = --xla_force_host_platform_device_count=2
jax-test:
	$(RUN) -m pytest tests/jax -m "not gpu" $(call XDIST,-n auto --maxprocesses 8)

.venv-jax-$(JAX)/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-jax-$(JAX)
	.venv-jax-$(JAX)/bin/python -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 30 \
		--editable '.[cu13,test]' 'jax==$(JAX)' flatbuffers
	.venv-jax-$(JAX)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps 'jax-cuda13-plugin==$(JAX)'
	touch $@

# In an environment without NVRTC: the pages and docstrings need no compiler.
docs: .venv-docs/.ready
	$(MAKE) --no-print-directory site VENV= PYTHON=.venv-docs/bin/python

.venv-docs/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

site:
	$(RUN) -m sphinx --fresh-env --quiet --fail-on-warning --keep-going -c docs -b html . build/site
	$(RUN) tools/check_site.py build/site
	@echo 'the site is in build/site/index.html'

release-check: $(READY)
	$(RUN) tools/check_release.py

ifneq ($(VENV),)
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("fastsgemm needs Python 3.11 or later, $(PYTHON) is " + sys.version.split()[0] + "; try make PYTHON=python3.12")'
ifneq ($(MADE_FOR),)
	@test -e $@ || echo "$(VENV) was made for $(MADE_FOR); it is made anew for $(VERSION) cu$(CUDA)"
	test -e $@ || $(PYTHON) -m venv --clear $(VENV)
else
	@test ! -e $(RUN) || test "$(call VERSION_OF,$(RUN))" = "$(VERSION)" || { echo "$(VENV) has another Python than $(PYTHON), which is $(VERSION), and make did not make it: remove it, or name another with VENV="; exit 1; }
	$(PYTHON) -m venv $(VENV)
endif
	@echo "installing fastsgemm[cu$(CUDA),$(EXTRAS)] and what it needs into $(VENV)"
	@$(RUN) -m pip install --retries 1 --disable-pip-version-check --editable '.[cu$(CUDA),$(EXTRAS)]' > $(VENV)/pip.log 2>&1 \
	|| { grep ERROR $(VENV)/pip.log | tail -n 1; echo "Packages are missing, and pip could not install them into $(VENV): this needs the network, once. $(VENV)/pip.log has what pip says. With an environment that has the packages, make needs no network: make demo VENV= PYTHON=python"; exit 1; }
	@touch $@
endif

clean:
	rm -rf .venv .venv-cu12 .venv-docs .venv-jax-* build dist .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
