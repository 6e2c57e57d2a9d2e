# Every target does its own set-up in .venv; delete that folder to start over.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo serve test check format explore fuzz test-slow test-docs docs release-check test-browser test-litellm test-lm-eval test-ray test-lowest bench study beyond \
	train-tiny distil-tiny clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: setup
	$(BIN)/foretell demo

# The server on http://localhost:8000, with its page. Other models: make serve MODEL=owner/name
MODEL ?= tiny
serve: setup
	$(BIN)/foretell serve $(MODEL)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/pytest -n 2 --cov --cov-report=term

# Random examples other than those of `make test`, which are the same every time.
explore: setup
	$(BIN)/pytest -n 2 --hypothesis-profile=explore

# Hostile recipes, options, prompts, files and HTTP requests: each has to end in a good result or a ForetellError, a
# request in a good answer or a 4xx. 30,000 cases with seed 0. Others: make fuzz SEED=fresh CASES=100000 KIND=traces
SEED ?= 0
fuzz: setup
	$(BIN)/python -m tests.fuzz --seed $(SEED) $(CASES:%=--cases %) $(KIND:%=--kind %)

test-slow: setup
	$(BIN)/pytest -m slow

# The commands and examples of the README and the docs that need minutes; `make test` runs the others.
test-docs: setup
	$(BIN)/pytest -m slow tests/test_examples.py

# The docs as a site in work/site. Broken links and anchors are errors.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Builds sdist and wheel into dist/, installs the wheel into an empty environment, and runs the README's commands there.
release-check: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt build
	$(BIN)/python -m tests.release

# The page in a real browser. Chromium comes from apt (as root), axe-core from npm; tests without them are skipped and
# say so.
AXE := work/axe/node_modules/axe-core/axe.min.js
test-browser: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt playwright
	test -x /usr/bin/chromium || test "$$(id -u)" != 0 || (apt-get update && apt-get install --yes --no-install-recommends chromium)
	test -f $(AXE) || npm install --silent --no-save --prefix work/axe axe-core@4.14.0 || true
	FORETELL_AXE=$(AXE) $(BIN)/pytest -m browser tests/serve/page

# lm-evaluation-harness needs other versions of some packages, so it has its own environment and constraints.
test-lm-eval: $(VENV)-lm-eval/.ready
	$(VENV)-lm-eval/bin/pytest -m lm_eval tests/evaluation/test_lm_eval.py

$(VENV)-lm-eval/.ready: pyproject.toml constraints-lm-eval.txt
	test -x $(VENV)-lm-eval/bin/python || $(PYTHON) -m venv $(VENV)-lm-eval
	$(VENV)-lm-eval/bin/python -m pip install --quiet --constraint constraints-lm-eval.txt torch
	$(VENV)-lm-eval/bin/python -m pip install --quiet --constraint constraints-lm-eval.txt \
		hypothesis pytest pytest-timeout --editable ".[lm-eval]"
	touch $@

# litellm needs an older openai than the other tests. It leaves event loops open, so warnings are no errors here.
test-litellm: $(VENV)-litellm/.ready
	$(VENV)-litellm/bin/pytest -m litellm -W ignore tests/serve/test_litellm.py

$(VENV)-litellm/.ready: pyproject.toml constraints-litellm.txt
	test -x $(VENV)-litellm/bin/python || $(PYTHON) -m venv $(VENV)-litellm
	$(VENV)-litellm/bin/python -m pip install --quiet --constraint constraints-litellm.txt torch
	$(VENV)-litellm/bin/python -m pip install --quiet --constraint constraints-litellm.txt \
		hypothesis litellm pytest pytest-timeout --editable ".[server]"
	touch $@

# A local Ray cluster of two nodes. Ray's packages stay out of the other environments, and it warns a lot.
test-ray: $(VENV)-ray/.ready
	RAY_USAGE_STATS_ENABLED=0 $(VENV)-ray/bin/pytest -m ray -W ignore tests/scale

$(VENV)-ray/.ready: pyproject.toml constraints-ray.txt
	test -x $(VENV)-ray/bin/python || $(PYTHON) -m venv $(VENV)-ray
	$(VENV)-ray/bin/python -m pip install --quiet --constraint constraints-ray.txt torch
	$(VENV)-ray/bin/python -m pip install --quiet --constraint constraints-ray.txt \
		hypothesis pytest pytest-timeout --editable ".[lab,ray,server]"
	touch $@

# The lowest versions that pyproject.toml allows.
test-lowest: $(VENV)-lowest/.ready
	$(VENV)-lowest/bin/pytest -n 2

$(VENV)-lowest/.ready: pyproject.toml constraints-lowest.txt
	test -x $(VENV)-lowest/bin/python || $(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install --quiet --constraint constraints-lowest.txt torch
	$(VENV)-lowest/bin/python -m pip install --quiet --constraint constraints-lowest.txt \
		hypothesis jsonschema openai pytest pytest-timeout pytest-xdist typesafe-sdk --editable ".[decide,hf,lab,parquet,plots,quantize,server]"
	touch $@

# About ninety minutes on two cores; run it again after an interruption and it goes on.
train-tiny: setup
	$(BIN)/foretell train runs/train_tiny.toml --export src/foretell/checkpoints/tiny

# About twenty minutes on two cores, and resumable too.
distil-tiny: setup
	$(BIN)/foretell distil runs/distil_tiny.toml --export src/foretell/checkpoints/tiny-sdtt

# The paper's study on the bundled model: about an hour on two idle cores. Run it again after an interruption and it
# goes on. A look, within minutes: make study STUDY="--limit 10 --work DIR --out DIR"
study: setup
	for script in tiny_proof main_table convergence last_change gap dynamics ablations; do \
		$(BIN)/python runs/$$script.py $(STUDY) || exit 1; \
	done

# What goes beyond the paper, on the bundled model: methods and their combinations, certificates, found answers. Hours;
# within minutes: make beyond STUDY="--limit 4 --work DIR --out DIR". Not runs/bench.py, which needs an idle machine.
beyond: setup
	for script in stack methods sdtt found_regions certified judge numerics; do \
		$(BIN)/python runs/$$script.py $(STUDY) || exit 1; \
	done

bench: setup
	$(BIN)/pytest -m bench

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(VENV)-litellm $(VENV)-lm-eval $(VENV)-lowest $(VENV)-ray build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
