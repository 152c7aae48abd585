# make demo   set up .venv, run the paper in miniature, build the report
# make test   set up .venv, lint, type check, every test
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test lint style lock clean

demo: $(INSTALLED)
	$(BIN)/python sweeps/full_paper.py --preset smoke
	$(BIN)/python reports/build_tables.py --preset smoke

# mypy runs as one of the tests.
test: style
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: style
	$(BIN)/mypy

style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

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
