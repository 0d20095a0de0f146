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

# The Python that you name, or else the environment's, if it exists.
ANY_PYTHON = $(if $(shell $(PYTHON) -c 'print(1)' 2>/dev/null),$(PYTHON),$(if $(wildcard $(PY)*),$(PY),$(error \
  The course needs Python 3.11 to 3.14, and "$(PYTHON)" was not found. Name another one: make $(MAKECMDGOALS) \
  PYTHON=python3.12)))
WITH_TORCH = $(if $(TORCH),--torch '$(TORCH)')
# The environment, and the checks of the course. Without make, you can call this file yourself.
TASKS = $(ANY_PYTHON) tasks.py $(WITH_TORCH)

# One thread for each process: two tests run at a time, and the results do not depend on it.
OMP_NUM_THREADS ?= 1
export OMP_NUM_THREADS
# Hundreds of processes start here, and each of them would compile the course again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help lab models test quick reader lint types pytest test-notebooks solved verify mutants notebooks check-notebooks comparisons lab-check \
  site site-check site-quick bench gpu package workflows clean FORCE

help:
	@echo 'The Executable Transformer'
	@echo
	@echo '  make lab               open the course in JupyterLab (creates its environment first)'
	@echo '  make models            get the two published models that lessons and tests use (once, 180 MB; make lab does it too)'
	@echo '  make test              check everything: lint, types, tests, and every cell of every notebook'
	@echo '  make quick             check a small change in two or three minutes: lint, types, and the tests that are not slow'
	@echo '  make reader            run what readers use, on any system: every cell again, and the tests of the code in lessons'
	@echo
	@echo '  make notebooks         build the notebooks whose sources changed, and execute those whose code changed or in which'
	@echo '                         the last make test-notebooks found a difference; ALL=1 executes all, LESSON=02 takes one'
	@echo '  make check-notebooks   check in seconds, without running cells, that the notebooks match their sources and follow the rules'
	@echo '  make test-notebooks    run every cell again and compare what it prints with what is stored; LESSON=02 takes one'
	@echo '  make comparisons       repeat the comparisons of lessons, with three or more seeds and two budgets, and print them (slow);'
	@echo '                         LESSON=04 chooses'
	@echo '  make verify            check every exercise with its right solutions and its known-wrong ones, and count'
	@echo '  make mutants           change one thing in each reference solution, and count the changes that the checks do not notice (minutes)'
	@echo '  make solved            write the exercises with their solutions into build/solved'
	@echo '  make lint | types | pytest     run one part of make test'
	@echo '  make lab-check         open every notebook in a real browser, run it, and try every figure and question (needs Chromium);'
	@echo '                         ONLY="start connection figures exercise questions lessons" and LESSON=02 choose'
	@echo '  make site              write the course as pages that need no network, for any browser: build/site/index.html'
	@echo '  make site-check        open every page in a real browser, and try every figure and question (needs Chromium);'
	@echo '                         PAGES="02 glossary" chooses'
	@echo '  make site-quick        the quick part of site-check: page size, links, print, search, and figures on a phone (needs Chromium)'
	@echo '  make pictures          make the animation of the start page from the site (needs Chromium)'
	@echo '  make bench             compare our speed with other libraries; BENCH="--quick --only decode" passes flags; includes llama.cpp if'
	@echo '                         LLAMA_CPP_PYTHON names a Python that has the package llama-cpp-python'
	@echo '  make gpu               test and measure everything that needs a GPU in under 8 minutes, with only PyTorch,'
	@echo '                         numpy, safetensors, jaxtyping and pytest; without a GPU, a rehearsal; GPU="--only decode"'
	@echo '  make package           build the packages for the package index into dist/, and test them in an empty environment (minutes)'
	@echo '  make workflows         check .github/workflows with actionlint (downloaded by Go; or ACTIONLINT=COMMAND)'
	@echo '  make clean             remove the environment and all caches'
	@echo
	@echo 'Options, as in  make lab PYTHON=python3.12'
	@echo '  PYTHON=$(PYTHON)         the Python (3.11 or newer) that creates the environment'
	@echo '  TORCH="torch==2.13.0 --index-url ADDRESS"   PyTorch version, with options for pip: see pytorch.org/get-started'

# --- the environment -------------------------------------------------------------------------------------------------
# Each extra contains those that it names in pyproject.toml. Installed ones take no time.
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

# --- reading and checking ---------------------------------------------------------------------------------------------
# Readers open copies in my/, which git ignores, so reading and answering do not change the checkout.
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


# With TAG=v1.0.0, the build fails if the version differs.
package:
	@$(ANY_PYTHON) tests/package/trial.py $(if $(TAG),--tag '$(TAG)') $(WITH_TORCH)

workflows:
	@$(ACTIONLINT)

# --- measuring -------------------------------------------------------------------------------------------------------
bench: $(VENV)/.bench
	@$(PY) -m benchmarks $(BENCH)

# Creates no environment, because machines with a GPU may have no network. Uses the Python that you name, or else the # environment's if it exists, or else python3.
gpu:
	@$(if $(filter command line environment,$(origin PYTHON)),$(PYTHON),$(if $(wildcard $(PY)),$(PY),$(PYTHON))) -m benchmarks.gpu $(GPU)

# --- writing ---------------------------------------------------------------------------------------------------------
notebooks: $(VENV)/.test
	@$(PY) -m authoring.build $(if $(ALL),--all) $(LESSON)
	@$(PY) -m companion course notebooks
	@$(PY) -m authoring.pages

# Measurements behind statements of the lessons (authoring/comparisons.toml); not part of `make test`.
comparisons: $(VENV)/.test
	@$(PY) -m authoring.comparisons $(LESSON)

# The website, built from the notebooks as they are; no cell is run.
site: $(VENV)/.site
	@$(PY) -m authoring.site

# All faults are reported, even if the first check fails.
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
