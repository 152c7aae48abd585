# make demo   set up .venv, run the paper in miniature, build the report
# make test   set up .venv, lint, type check, every test
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test lint lock clean

demo: $(INSTALLED)
	$(BIN)/python sweeps/full_paper.py --preset smoke
	$(BIN)/python reports/build_tables.py --preset smoke

# The longest come first; they mostly wait.
test: lint
	$(BIN)/python -m pytest -n 3 --dist loadfile tests/sweeps tests/experiment tests

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lock: $(INSTALLED)
	$(BIN)/pip install --upgrade -e '.[dev]'
	( echo "# Exact versions of everything in the environment that make sets up; written by: make lock"; \
	  $(BIN)/pip list --format=freeze | grep -vE '^(metatok|pip|wheel)==' | sed 's/+cpu$$//' ) > requirements.lock

$(INSTALLED): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf $(VENV)
