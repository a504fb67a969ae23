# What a newcomer types: `make demo`, `make check` while working, `make test`; `make docs` for the pages;
# `make fuzz` as long as one likes. Each makes .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Compiled modules are kept, whatever the environment says: else each of some hundred processes compiles them again.
unexport PYTHONDONTWRITEBYTECODE
# But not all modules of all packages when they are installed: half a minute.
export PIP_NO_COMPILE := 1
INSTALLED := $(VENV)/.installed

.PHONY: demo test check lint docs fuzz many release arm64 clean

# mpirun hides the terminal from its ranks, so whether to draw a bar is decided here.
demo: $(INSTALLED)
	@if [ -t 1 ]; then progress=bar; else progress=lines; fi; \
	$(BIN)/mpirun -np 2 $(BIN)/python -m examples.ddp_cifar_resnet --progress $$progress

# In three processes for two cores (tests/conftest.py says what runs together). `python -m pytest` takes one for all.
SPREAD := -n 3 --dist loadfile

# In about 15 minutes on two quick cores, and 30 on slow ones. The tests wait for no linter: the first ones wait for
# ranks anyway.
test: $(INSTALLED)
	@$(MAKE) --no-print-directory --jobs 2 lint tests

.PHONY: tests
tests: $(INSTALLED)
	$(BIN)/python -m pytest $(SPREAD)

# What needs no mpirun, compiles neither CUDA kernels nor a wheel, and is quick: in less than 90 s on two cores. Nothing
# waits for ranks here, so there are as many processes as cores.
check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not mpi and not slow"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation, in docs/_build/html: in less than a minute. A warning is an error. `make test` does the same, without
# pages of source code.
docs: $(INSTALLED)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -b html docs docs/_build/html

# Damaged files for every reader: for SECONDS in all, or CASES files of each format.
SECONDS ?= 60
fuzz: $(INSTALLED)
	$(BIN)/python -m tests.fuzz $(if $(CASES),--cases $(CASES),--seconds $(SECONDS))

# The distributed tests on many ranks: those whose programs take any number.
RANKS ?= 8
SUBJECTS := collectives ddp ddp_combinations ddp_options evidence fsdp functional groups handles messages update_bn
many: $(INSTALLED)
	TEST_RANKS=$(RANKS) $(BIN)/python -m pytest -q --timeout 0 -m "mpi and rank_program" \
	    $(SUBJECTS:%=tests/mpi/test_%.py) tests/mpi/test_pipeline.py::test_bits_of_one_process

# Sdist and wheels of a release, tried and in dist/; says what is left to do. REPOSITORY=https://... once.
release: $(INSTALLED)
	$(BIN)/python -m tests.release $(VERSION) $(if $(REPOSITORY),--repository $(REPOSITORY))

# Builds and tests on arm64 Linux, emulated; FOLDER=... keeps the system for the next time.
arm64: $(INSTALLED)
	$(BIN)/python -m tests.arm64 $(if $(FOLDER),--folder $(FOLDER))

COMPILED := kernels/cpu/* pytagi_ddp/distributed/engine
$(INSTALLED): pyproject.toml setup.py $(wildcard $(foreach ending,pyx pxd h,$(addsuffix /*.$(ending),$(COMPILED))))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[mpi,plot,docs,test]"
	touch $@

clean:
	rm -rf $(VENV) build dist docs/_build docs/gallery docs/api/generated *.egg-info
	rm -f $(foreach ending,so c,$(addsuffix /*.$(ending),$(COMPILED)))
