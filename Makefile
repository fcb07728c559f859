# make demo    set up, then audit six defences on bundled images, report in out/demo
# make test    set up, then lint, types and tests
# make test-flower  set up, then the tests that start a SuperLink and SuperNodes on loopback; minutes

PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
WORKERS ?= 2
BIN := .venv/bin
# Named after what was installed: a second run installs nothing, a changed lock installs anew.
READY := .venv/.ready-$(shell cat requirements.lock pyproject.toml | cksum | cut -d' ' -f1)
CODE := $(wildcard src tests tools benchmarks examples)

.DEFAULT_GOAL := test
.PHONY: demo test test-flower lint format clean

demo: $(READY)
	$(BIN)/refiner audit --victims 20 --iterations 400 --out out/demo \
		$(addprefix --defense ,none refiner dp-gaussian gq pruning soteria)

test: lint
	$(BIN)/pytest -n $(WORKERS)

# One after the other: each deployment has as many processes as the cores can bear.
test-flower: $(READY)
	$(BIN)/pytest -m flower tests/federation/flower

lint: $(READY)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
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
