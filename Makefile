# Each target sets up what it needs:
# make demo         audit six defences on bundled images; report in out/demo
# make test         lint, import contracts, types and tests
# make docs         run the code of the documentation and build its site, in out/docs
# make test-processes the tests that start and kill other processes, or take long
# make test-flower  the tests that start a SuperLink and SuperNodes on loopback; minutes
# make test-wheel   build the wheel, install it into an empty environment, run an audit with it
# make test-frameworks the examples with Lightning, Hugging Face's Trainer and Ray
# make test-kernels the Triton kernels without a GPU, in Triton's interpreter

PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
WORKERS ?= 2
BIN := .venv/bin
# Named after what was installed: a second run installs nothing, a changed lock installs anew.
READY := .venv/.ready-$(shell cat requirements.lock pyproject.toml | cksum | cut -d' ' -f1)
CODE := $(wildcard src tests tools benchmarks examples)
# Compiled once, not by each of the many processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := test
.PHONY: demo test docs test-processes test-flower test-wheel test-kernels test-frameworks lint format clean

demo: $(READY)
	$(BIN)/refiner audit --victims 20 --iterations 300 --attack inverting --attack linear --out out/demo \
		$(addprefix --defense ,none refiner dp-gaussian gq pruning soteria:sensitivity=estimated)

test: lint
	$(BIN)/pytest -n $(WORKERS)

docs: $(READY)
	$(BIN)/python tools/result_tables.py --check
	$(BIN)/pytest -n $(WORKERS) -q -m documentation tests/test_documentation.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open out/docs/index.html"

test-processes: $(READY)
	$(BIN)/pytest -n $(WORKERS) -q -m processes tests

# One after the other: each deployment has as many processes as the cores can bear.
test-flower: $(READY)
	$(BIN)/pytest -m flower tests/federation/flower

# Outside the checkout, so that nothing is imported from it.
test-wheel: $(READY)
	rm -rf dist out/wheel && mkdir -p out/wheel
	$(BIN)/python -m build --quiet --no-isolation --wheel --outdir dist
	$(PYTHON) -m venv out/wheel/env
	out/wheel/env/bin/pip install --quiet --disable-pip-version-check -c requirements.lock dist/refiner_fl-*.whl
	cd out/wheel && env/bin/refiner --version
	cd out/wheel && env/bin/refiner audit --victims 2 --iterations 5 --defense none --defense refiner --out audit
	test -s out/wheel/audit/report.html && rm -rf out/wheel

# Beside the environment: Triton is large, and no other test needs it.
TRITON := out/triton-3.9.0
test-kernels: $(READY)
	[ -d $(TRITON) ] || { $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(TRITON).part triton==3.9.0 && mv $(TRITON).part $(TRITON); }
	PYTHONPATH=$(TRITON) $(BIN)/pytest -n $(WORKERS) -q tests/core/test_kernels.py

# Beside the environment, as for Triton: they are large, and only examples need them.
FRAMEWORKS := out/frameworks-$(shell cksum < examples/requirements.lock | cut -d' ' -f1)
test-frameworks: $(READY)
	[ -d $(FRAMEWORKS) ] || { rm -rf $(FRAMEWORKS).part && $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(FRAMEWORKS).part -r examples/requirements.lock && mv $(FRAMEWORKS).part $(FRAMEWORKS); }
	PYTHONPATH=$(CURDIR)/$(FRAMEWORKS) $(BIN)/pytest -n $(WORKERS) -q -m frameworks tests/examples

lint: $(READY)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

clean:
	rm -rf .venv out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "refiner needs Python 3.11 or newer, but PYTHON = $(PYTHON); try make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@rm -f .venv/.ready-*
	@touch $@
