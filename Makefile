# Each of these works alone in a fresh clone: it creates .venv and installs what it needs first.
#   make demo    a job that hangs, under `desync watch`, and the report
#   make test    the whole suite (ARGS="-k name" goes to pytest)
#   make lint    ruff and mypy
#   make bench   what recording costs; 10,000 simulated jobs and whom the diagnosis blames; how long that takes for 1,024 ranks
#   make clean   removes .venv and everything that was made
# Another Python: make test PYTHON=python3.12.  The first run downloads torch, unless pip finds a wheel of it nearby.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
ARGS   ?=

export OMP_NUM_THREADS ?= 1

.PHONY: help demo test browser lint bench clean
help:
	@sed -n 's/^#   //p' Makefile

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "desync needs Python 3.10 or newer; choose one with: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Status 3: desync has ended a hung job, which is what this shows.  Torchrun's own words about its end follow the report, so
# it is shown once more.
demo: $(READY)
	@$(BIN)/desync watch --on-hang kill -- \
	  $(BIN)/torchrun --standalone --nproc-per-node 4 fault_scenarios/uneven_data.py; \
	  status=$$?; test $$status -eq 3 || { echo "the demo should have ended with status 3, not $$status" >&2; exit 1; }
	@echo; echo "What 'desync report' says of this run:"; echo
	@$(BIN)/desync report

# Two at a time, for the jobs of the tests spend much of their time waiting; a file's tests share its jobs and stay together.
test: $(READY) browser
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

# The tests of report.html look at it in Chromium.  Where it can be installed without asking (root, on Debian) it is;
# elsewhere those tests are skipped, and say so.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	  { test "$$(id -u)" = 0 && command -v apt-get >/dev/null || exit 0; \
	    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver; } >/dev/null 2>&1 || \
	    echo "Chromium could not be installed; the tests that need it will be skipped" >&2; }

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python tools/bench_recorder.py
	$(BIN)/python tools/bench_diagnosis.py
	$(BIN)/python tools/simulated_jobs.py --jobs 10000

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
