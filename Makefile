# make test and make demo are all that is needed from a fresh clone: nothing but Python >= 3.10 and make.
#
# PYTHON=python3.12  the interpreter that .venv is made from
# CUDA=12            the CUDA line of the NVRTC that is installed into .venv (13 needs a driver of the 580 line or later)
# EXTRAS=test        what of the package's extras .venv gets beside NVRTC
# VENV=              use PYTHON's own packages as they are, and install nothing

PYTHON ?= python3
CUDA ?= 13
VENV ?= .venv
EXTRAS ?= dev
BENCH_JSON ?= build/benchmarks.json

ifeq ($(VENV),)
READY :=
RUN := $(PYTHON)
BIN :=
export PYTHONPATH := $(CURDIR)/src$(if $(PYTHONPATH),:$(PYTHONPATH))
else
READY := $(VENV)/.ready-cu$(CUDA)
BIN := $(VENV)/bin/
RUN := $(BIN)python
endif

DEVICE_CODE := $(wildcard cuda_src/*.cu cuda_src/device/*.cuh)

.NOTPARALLEL:
.PHONY: help test test-all test-cpu test-slow test-gpu demo check nvrtc nvrtc-line lint bench bench-check counts sass hostile tables torch docs site release-check clean

help:
	@echo 'make test    set up .venv on first use, then run the tests, those that need a GPU where there is one'
	@echo 'make test-all  the same with the slow tests: every architecture, every shipped config, every barrier left out'
	@echo 'make test-gpu  only the tests that need a GPU'
	@echo 'make demo    the same set-up, then show what was found on this machine and climb the ladder, simulated where there is no GPU'
	@echo 'make check   lint, types, documentation that matches its data, and the tests'
	@echo 'make nvrtc   run every rung on every simulated architecture with both lines of NVRTC, 12 and 13'
	@echo 'make bench   run the benchmarks and write $(BENCH_JSON)'
	@echo 'make bench-check  run the benchmarks and fail where a figure fell by 5 % against docs/data/benchmarks.json'
	@echo 'make counts  count what the rungs do on the simulated device, and write docs/ladder.md from that'
	@echo 'make sass    count the instructions of rung 9, and write docs/sass.md from that (needs nvdisasm)'
	@echo 'make hostile count what the tests in tests/hostile try, and write docs/hostile.md from that'
	@echo 'make tables  write the tables of README.md and docs/ from $(BENCH_JSON)'
	@echo 'make docs    build the site in build/site, in an environment of its own; a dead link or a missing docstring fails'
	@echo 'make release-check  build the wheel and try it in a new environment of every supported Python'
	@echo 'make torch   add a CPU build of PyTorch to .venv, so that its tests run where there is no GPU'
	@echo 'make clean   remove what these targets made'

# By several processes where pytest-xdist is installed. The tests that need no GPU come last, so that the last line of
# the output counts tests that ran.
XDIST = $$($(RUN) -c "import xdist" 2>/dev/null && echo "$(1)")

test: test-gpu test-cpu

test-all: test test-slow

test-gpu: $(READY)
	@missing=$$($(RUN) tests/support/missing_device.py) || exit 1; \
	if [ -n "$$missing" ]; then echo "The GPU tests do not run: $$missing"; \
	else set -x; $(RUN) -m pytest -m gpu $(call XDIST,-n 8); fi

test-cpu: $(READY)
	$(RUN) -m pytest -m "not gpu and not slow" $(call XDIST,-n auto --maxprocesses 8)

test-slow: $(READY)
	$(RUN) -m pytest -m "slow and not gpu" $(call XDIST,-n auto --maxprocesses 8)

demo: $(READY)
	$(RUN) -m fastsgemm

check: lint
	$(MAKE) --no-print-directory test

# An environment for each line: the bindings of one do not load the NVRTC of the other.
nvrtc:
	$(MAKE) --no-print-directory nvrtc-line CUDA=12 VENV=.venv-cu12 EXTRAS=test
	$(MAKE) --no-print-directory nvrtc-line CUDA=13 VENV=.venv

nvrtc-line: $(READY)
	$(RUN) -c "from fastsgemm import device; found = device.nvrtc_version(); print('NVRTC', found); assert found[0] == $(CUDA)"
	$(RUN) -m pytest tests/sim/test_architectures.py -n auto --maxprocesses 8

lint: $(READY)
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(BIN)clang-format --dry-run -Werror $(DEVICE_CODE)
	$(RUN) tools/write_tables.py --check
	$(RUN) tools/write_commands.py --check
	$(RUN) tools/draw_rooms.py --check
	$(RUN) tools/draw_figures.py --check

bench: $(READY)
	mkdir -p $(dir $(BENCH_JSON))
	$(RUN) -m pytest tests/benchmarks --benchmark-enable --benchmark-only --benchmark-json=$(BENCH_JSON)

bench-check: bench
	$(RUN) tools/check_benchmarks.py $(BENCH_JSON)

# The shipped constants for the default device, whatever this machine has found or asks for. Rung 9's tile there is
# 128 x 256: on a smaller C a kernel would be counted that checks bounds, and not the one that a large problem uses.
counts: $(READY)
	mkdir -p build
	FASTSGEMM_DATA_DIR=build/no-tuning FASTSGEMM_SIM_DEVICE= $(RUN) -m fastsgemm ladder --device sim --size 128,256,128 --json > build/counts.json
	mv build/counts.json docs/data/counts.json
	$(RUN) tools/write_tables.py

sass: $(READY)
	FASTSGEMM_DATA_DIR=build/no-tuning $(RUN) tools/sass.py
	$(RUN) tools/write_tables.py

hostile: $(READY)
	FASTSGEMM_HOSTILE_JSON=docs/data/hostile.json $(RUN) -m pytest -q -m "not gpu" tests/hostile
	$(RUN) tools/write_tables.py

tables: $(READY)
	$(RUN) tools/write_tables.py $(BENCH_JSON)
	$(RUN) tools/draw_figures.py

# Pinned to the CPU build by name: plain `torch` would bring gigabytes of CUDA libraries.
torch: $(READY)
	$(RUN) -m pip install --retries 1 --timeout 30 --extra-index-url https://download.pytorch.org/whl/cpu 'torch==2.13.0+cpu'

# In an environment without NVRTC: the pages and docstrings need no compiler.
docs: .venv-docs/.ready
	$(MAKE) --no-print-directory site VENV= PYTHON=.venv-docs/bin/python

.venv-docs/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

site:
	$(RUN) -m sphinx --quiet --fail-on-warning --keep-going -c docs -b html . build/site
	$(RUN) tools/check_site.py build/site
	@echo 'the site is in build/site/index.html'

release-check: $(READY)
	$(RUN) tools/check_release.py

ifneq ($(VENV),)
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("fastsgemm needs Python 3.10 or later, $(PYTHON) is " + sys.version.split()[0] + "; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[cu$(CUDA),$(EXTRAS)]'
	rm -f $(VENV)/.ready-*
	touch $@
endif

clean:
	rm -rf .venv .venv-cu12 .venv-docs build dist .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
