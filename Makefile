# The Executable Transformer. `make` explains the targets. Paths are relative on purpose: the checkout may lie in a
# folder with spaces or accents in its name, which make cannot handle. Works with GNU make 3.81 (macOS).

PYTHON ?= python3
TORCH  ?= torch==2.13.0
LESSON ?=
FIGURES ?= lab-figures
ONLY ?=
PAGES ?=
BENCH ?=
SETTING ?=
FUZZ ?=
MACHINES ?=
GPU ?=

VENV := .venv
PY   := $(VENV)/bin/python
PIP  := $(PY) -m pip --disable-pip-version-check install

# One thread for each process: the tests run two at once, and the numbers do not depend on it.
OMP_NUM_THREADS ?= 1
export OMP_NUM_THREADS
# Hundreds of processes start here, and each would compile the course anew.
unexport PYTHONDONTWRITEBYTECODE

# A file's tests stay in one process; what takes long starts first (tests/conftest.py), so that both end together.
PYTEST := $(PY) -m pytest -n 2 --dist loadscope --no-loadscope-reorder
NBVAL  := --nbval --nbval-current-env --nbval-cell-timeout=600
# A reader's progress is not for tests to write.
IN_BUILD := COMPANION_HOME="$$PWD/build/progress"

.DEFAULT_GOAL := help
.PHONY: help lab test quick lint types pytest test-notebooks machines solved verify notebooks check-notebooks lab-check \
  site site-check bench gpu fuzz clean FORCE

help:
	@echo 'The Executable Transformer'
	@echo
	@echo '  make lab               open the course in JupyterLab (makes its environment first)'
	@echo '  make test              prove everything: lint, types, tests, and every cell of every notebook'
	@echo '  make quick             under two minutes, for a changed line: lint, types, and the tests that are not slow'
	@echo
	@echo '  make notebooks         build the notebooks whose sources changed; ALL=1 executes all, LESSON=02 takes one'
	@echo '  make check-notebooks   seconds, runs no cell: are the notebooks what their sources build, and in good form?'
	@echo '  make test-notebooks    run every cell again and compare what it prints with what is stored; LESSON=02 takes one'
	@echo '  make machines          the same and the tests of numbers as on other processors, and a table of what differs (hours);'
	@echo '                         LESSON="13 tests" and SETTING="avx2 odd-loads" choose, MACHINES=--list explains'
	@echo '  make verify            try every exercise with all that is right and all that is wrong, and count'
	@echo '  make solved            write the exercises with their solutions into build/solved'
	@echo '  make lint | types | pytest     one part of make test alone'
	@echo '  make lab-check         open every notebook in a real browser, run it, move and answer everything (needs Chromium);'
	@echo '                         ONLY="start figures exercise questions lessons" and LESSON=02 choose'
	@echo '  make site              write the course as pages that need no network, for any browser: build/site/index.html'
	@echo '  make site-check        open every page in a real browser, move and answer everything (needs Chromium);'
	@echo '                         PAGES="02 glossary" chooses'
	@echo '  make fuzz              ten minutes of malformed calls, files and command lines, and a table of what became of them;'
	@echo '                         FUZZ="--minutes 60 --only flags run" passes flags on'
	@echo '  make bench             speed beside other libraries; BENCH="--quick --only decode" passes flags on'
	@echo '  make gpu               everything that needs a GPU, proved and measured in under 8 minutes, with nothing but PyTorch,'
	@echo '                         numpy, safetensors, jaxtyping and pytest; without a GPU a rehearsal; GPU="--only decoding"'
	@echo '  make clean             remove the environment and all caches'
	@echo
	@echo 'Options, as in  make lab PYTHON=python3.12'
	@echo '  PYTHON=$(PYTHON)         the Python (3.11 or newer) that makes the environment'
	@echo '  TORCH=$(TORCH)   which PyTorch to install, with any options of pip: see pytorch.org/get-started'

# --- the environment -------------------------------------------------------------------------------------------------
# Stamp files say what has been installed, and are touched only when something was: a second run takes seconds.

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo 'The course needs Python 3.11 or newer, and "$(PYTHON)" is' "$$($(PYTHON) --version 2>/dev/null || echo 'not there')." >&2; \
	  echo 'Name another one:  make $(MAKECMDGOALS) PYTHON=python3.12' >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || { echo 'Making the environment in $(VENV) ...'; $(PYTHON) -m venv $(VENV); } || { \
	  echo 'Could not make a virtual environment. On Debian and Ubuntu:  apt install python3-venv' >&2; exit 1; }
	@touch $@

# PyTorch alone and first, so that nothing else chooses its build. Another TORCH= is taken up when you give one.
$(VENV)/.torch: $(VENV)/.created FORCE
	@if [ ! -f $@ ] || { [ '$(origin TORCH)' != file ] && [ "$$(cat $@)" != '$(TORCH)' ]; }; then \
	  echo 'Installing $(TORCH) (a minute or more) ...'; \
	  $(PIP) $(TORCH) && echo '$(TORCH)' > $@; fi

# A checkout that was moved installs itself again: Python finds the package by the folder's name. Each extra contains
# those after it, whose stamps it sets too.
define install
@if [ ! -f $@ ] || [ "$$(cat $@)" != "$$PWD" ] || [ pyproject.toml -nt $@ ] || [ $(VENV)/.torch -nt $@ ]; then \
  echo 'Installing the course with its extra "$(1)" (a minute or two) ...'; \
  $(PIP) --quiet --editable '.[$(1)]' && for extra in $(1) $(2); do echo "$$PWD" > $(VENV)/.$$extra; done; fi
endef

$(VENV)/.lab: $(VENV)/.torch FORCE
	$(call install,lab)

$(VENV)/.test: $(VENV)/.torch FORCE
	$(call install,test,lab)

$(VENV)/.bench: $(VENV)/.torch FORCE
	$(call install,bench)

$(VENV)/.site: $(VENV)/.torch FORCE
	$(call install,site,test lab)

$(VENV)/.dev: $(VENV)/.torch FORCE
	$(call install,dev,site test lab)

# --- reading ---------------------------------------------------------------------------------------------------------
# What a reader opens are copies in my/, which git ignores: reading and answering leave the checkout as it is.
lab: $(VENV)/.lab
	@$(PY) -m companion.study.lab

# --- proving ---------------------------------------------------------------------------------------------------------
test: $(VENV)/.test
	@$(MAKE) --no-print-directory -j2 lint types solved verify
	$(IN_BUILD) $(PYTEST) $(NBVAL) tests notebooks build/solved

quick: $(VENV)/.test
	@$(MAKE) --no-print-directory lint types
	$(PYTEST) -q -m 'not slow' tests

lint: $(VENV)/.test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet .

types: $(VENV)/.test
	$(PY) -m mypy

pytest: $(VENV)/.test
	$(PYTEST) tests

test-notebooks: $(VENV)/.test solved
	$(IN_BUILD) $(PYTEST) $(NBVAL) $(or $(foreach one,$(LESSON),notebooks/$(one)*.ipynb $(wildcard notebooks/deeper/$(one)*.ipynb notebooks/exercises/$(one)*.ipynb build/solved/$(one)*.ipynb)),notebooks build/solved)

# Other kernels, threads, alignments and hash seeds, one after the other; not part of `make test`.
machines: $(VENV)/.test solved
	@PYTHONPATH=tests $(PY) -m machines.run $(if $(LESSON),--lesson $(LESSON)) $(if $(SETTING),--setting $(SETTING)) $(MACHINES)

# The exercises' notebooks with their solutions, and with what they must print.
solved: $(VENV)/.test
	@rm -rf build/solved
	@$(PY) -m companion course notebooks --solved build/solved

# Every reference, every other right answer, every stub and known mistake, and the hostile class: counted.
verify: $(VENV)/.test
	@$(PY) -m companion course verify

lab-check: $(VENV)/.dev
	PYTHONPATH=tests $(PY) tests/lab/check.py $(if $(ONLY),--only $(ONLY)) --figures '$(FIGURES)' $(if $(LESSON),-- $(LESSON))

site-check: $(VENV)/.dev site
	PYTHONPATH=tests:. $(PY) tests/lab/pages.py --figures '$(FIGURES)' $(PAGES)

# `make test` tries a fixed thousand of these cases.
fuzz: $(VENV)/.test
	@cd tests && ../$(PY) -m fuzz $(FUZZ)

# --- measuring -------------------------------------------------------------------------------------------------------
bench: $(VENV)/.bench
	@$(PY) -m companion bench $(BENCH)

# Makes no environment: where a GPU is lent there may be no network. The Python you name, else the environment's if it
# is there, else python3.
gpu:
	@$(if $(filter command line environment,$(origin PYTHON)),$(PYTHON),$(if $(wildcard $(PY)),$(PY),$(PYTHON))) -m companion.bench.gpu $(GPU)

# --- writing ---------------------------------------------------------------------------------------------------------
notebooks: $(VENV)/.test
	@$(PY) -m authoring.build $(if $(ALL),--all) $(LESSON)
	@$(PY) -m companion course notebooks
	@$(PY) -m authoring.pages

# Everything a reader reads, from the notebooks as they are: no cell is run.
site: $(VENV)/.site
	@$(PY) -m authoring.site

check-notebooks: $(VENV)/.test
	@$(PY) -m authoring.build --check $(LESSON)
	@$(PY) -m companion course notebooks --check
	@$(PY) -m authoring.pages --check
	@$(PY) -m pytest -q tests/authoring/test_lessons.py tests/test_claims.py

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
