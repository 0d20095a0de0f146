# The Executable Transformer. `make` explains the targets. Paths are relative on purpose: the checkout may lie in a
# folder with spaces or accents in its name, which make cannot handle. Works with GNU make 3.81 (macOS).

PYTHON ?= $(if $(filter Windows_NT,$(OS)),python,python3)
TORCH  ?=
LESSON ?=
FIGURES ?= lab-figures
ONLY ?=
PAGES ?=
BENCH ?=
GPU ?=
TAG ?=
ACTIONLINT ?= go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.7

VENV := .venv
PY   := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)/python

# The Python you name, else the environment's, if that is there.
ANY_PYTHON = $(if $(shell $(PYTHON) -c 'print(1)' 2>/dev/null),$(PYTHON),$(if $(wildcard $(PY)*),$(PY),$(error \
  The course needs Python 3.11 to 3.14, and "$(PYTHON)" is not there. Name another one:  make $(MAKECMDGOALS) \
  PYTHON=python3.12)))
WITH_TORCH = $(if $(TORCH),--torch '$(TORCH)')
# The environment, and what proves the course: whoever has no make calls this file.
TASKS = $(ANY_PYTHON) tasks.py $(WITH_TORCH)

# One thread for each process: the tests run two at once, and the numbers do not depend on it.
OMP_NUM_THREADS ?= 1
export OMP_NUM_THREADS
# Hundreds of processes start here, and each would compile the course anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help lab models test quick reader lint types pytest test-notebooks solved verify mutants notebooks check-notebooks comparisons lab-check \
  site site-check site-quick bench gpu package workflows clean FORCE

help:
	@echo 'The Executable Transformer'
	@echo
	@echo '  make lab               open the course in JupyterLab (makes its environment first)'
	@echo '  make models            get the two published models that lessons and tests use (once, 180 MB; make lab does it too)'
	@echo '  make test              prove everything: lint, types, tests, and every cell of every notebook'
	@echo '  make quick             in two or three minutes, for a changed line: lint, types, and the tests that are not slow'
	@echo '  make reader            what a reader relies on, on any system: every cell again, and the tests of what lessons use'
	@echo
	@echo '  make notebooks         build the notebooks whose sources changed, and execute those whose code changed or in which'
	@echo '                         the last make test-notebooks found a difference; ALL=1 executes all, LESSON=02 takes one'
	@echo '  make check-notebooks   seconds, runs no cell: are the notebooks what their sources build, and in good form?'
	@echo '  make test-notebooks    run every cell again and compare what it prints with what is stored; LESSON=02 takes one'
	@echo '  make comparisons       run again what lessons compare, from three starts or more with two budgets, and print it (long);'
	@echo '                         LESSON=04 chooses'
	@echo '  make verify            try every exercise with all that is right and all that is wrong, and count'
	@echo '  make mutants           change one thing in each reference, and count which changes the checks do not notice (minutes)'
	@echo '  make solved            write the exercises with their solutions into build/solved'
	@echo '  make lint | types | pytest     one part of make test alone'
	@echo '  make lab-check         open every notebook in a real browser, run it, move and answer everything (needs Chromium);'
	@echo '                         ONLY="start connection figures exercise questions lessons" and LESSON=02 choose'
	@echo '  make site              write the course as pages that need no network, for any browser: build/site/index.html'
	@echo '  make site-check        open every page in a real browser, move and answer everything (needs Chromium);'
	@echo '                         PAGES="02 glossary" chooses'
	@echo '  make site-quick        of that, in a minute or two: weight, links, print, search, and figures on a phone (needs Chromium)'
	@echo '  make pictures          make the moving picture of the start page from the site (needs Chromium)'
	@echo '  make bench             speed beside other libraries; BENCH="--quick --only decode" passes flags on; llama.cpp too, if'
	@echo '                         LLAMA_CPP_PYTHON names a Python that has the package llama-cpp-python'
	@echo '  make gpu               everything that needs a GPU, proved and measured in under 8 minutes, with nothing but PyTorch,'
	@echo '                         numpy, safetensors, jaxtyping and pytest; without a GPU a rehearsal; GPU="--only decode"'
	@echo '  make package           build what goes to the package index into dist/, and try it in an empty environment (minutes)'
	@echo '  make workflows         look for mistakes in .github/workflows with actionlint (fetched by Go; or ACTIONLINT=COMMAND)'
	@echo '  make clean             remove the environment and all caches'
	@echo
	@echo 'Options, as in  make lab PYTHON=python3.12'
	@echo '  PYTHON=$(PYTHON)         the Python (3.11 or newer) that makes the environment'
	@echo '  TORCH="torch==2.13.0 --index-url ADDRESS"   which PyTorch, with any options of pip: see pytorch.org/get-started'

# --- the environment -------------------------------------------------------------------------------------------------
# Each extra contains those that it names in pyproject.toml. What is there already takes no time.
define install
@$(TASKS) environment $(1)
endef

$(VENV)/.lab: FORCE
	$(call install,lab)

$(VENV)/.test: FORCE
	$(call install,test)

$(VENV)/.bench: FORCE
	$(call install,bench)

$(VENV)/.site: FORCE
	$(call install,site)

$(VENV)/.dev: FORCE
	$(call install,dev)

# --- reading and proving ---------------------------------------------------------------------------------------------
# What a reader opens are copies in my/, which git ignores: reading and answering leave the checkout as it is.
lab:
	@$(TASKS) lab

models test quick reader lint types pytest solved verify mutants:
	@$(TASKS) $@

test-notebooks:
	@$(TASKS) test-notebooks $(LESSON)

lab-check: $(VENV)/.dev
	PYTHONPATH=tests $(PY) tests/lab/check.py $(if $(ONLY),--only $(ONLY)) --figures '$(FIGURES)' $(if $(LESSON),-- $(LESSON))

pictures: $(VENV)/.dev site
	PYTHONPATH=tests/lab:tests:. $(PY) tests/lab/pictures.py

site-check: $(VENV)/.dev site
	PYTHONPATH=tests:. $(PY) tests/lab/pages.py --figures '$(FIGURES)' $(PAGES)

site-quick: $(VENV)/.dev site
	PYTHONPATH=tests:. $(PY) tests/lab/pages.py --quick $(PAGES)


# TAG=v1.0.0 refuses to build another version.
package:
	@$(ANY_PYTHON) tests/package/trial.py $(if $(TAG),--tag '$(TAG)') $(WITH_TORCH)

workflows:
	@$(ACTIONLINT)

# --- measuring -------------------------------------------------------------------------------------------------------
bench: $(VENV)/.bench
	@$(PY) -m benchmarks $(BENCH)

# Makes no environment: where a GPU is lent there may be no network. The Python you name, else the environment's if it
# is there, else python3.
gpu:
	@$(if $(filter command line environment,$(origin PYTHON)),$(PYTHON),$(if $(wildcard $(PY)),$(PY),$(PYTHON))) -m benchmarks.gpu $(GPU)

# --- writing ---------------------------------------------------------------------------------------------------------
notebooks: $(VENV)/.test
	@$(PY) -m authoring.build $(if $(ALL),--all) $(LESSON)
	@$(PY) -m companion course notebooks
	@$(PY) -m authoring.pages

# What sentences of lessons rest on (authoring/comparisons.toml); not part of `make test`.
comparisons: $(VENV)/.test
	@$(PY) -m authoring.comparisons $(LESSON)

# Everything a reader reads, from the notebooks as they are: no cell is run.
site: $(VENV)/.site
	@$(PY) -m authoring.site

# All of it is said, whatever comes first.
check-notebooks: $(VENV)/.test
	@code=0; \
	$(PY) -m authoring.build --check $(LESSON) || code=1; \
	$(PY) -m companion course notebooks --check || code=1; \
	$(PY) -m authoring.pages --check || code=1; \
	$(PY) -m pytest -q tests/authoring/test_lessons.py tests/test_claims.py || code=1; \
	exit $$code

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
