# The commands of the README. Each installs what it needs into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests run with the versions pinned here; empty takes the newest that pyproject.toml allows.
CONSTRAINTS ?= -c constraints.txt
IMAGE ?= shoal
PROGRAMS := chromium prometheus openjdk-17-jre-headless maven mosquitto jq docker.io docker-compose iptables debootstrap
# Linear algebra uses one thread per process: more would compete with the other processes for cores.
export OPENBLAS_NUM_THREADS = 1
export OMP_NUM_THREADS = 1
# Tests start many processes; where nothing may be cached, each would compile shoal's Python files for itself.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo check test newest programs integration lint check-types bench fuzz soak chaos advisories audit promised screenshots release image docs kafka-start kafka-stop clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.demo ## cluster a real sensor stream on this machine, with a live page
	@$(BIN)/shoal demo $(DEMO)

# Kernels are compiled once before the tests: otherwise every process that needs them first would compile them for itself.
# Types are checked beside the tests, which wait for processes more than they compute, so more workers than two cores
# gain time. What is wrong with types is printed last, where it is seen.
test: $(VENV)/.dev lint ## in 17 to 45 minutes, by the processor: lint, check types, run all tests but those of `make integration`
	$(BIN)/mypy > $(VENV)/types.txt & types=$$!; \
		$(BIN)/shoal kernels && SHOAL_TEST_FORM=compiled \
		$(BIN)/pytest -n 6 --dist loadfile --no-loadscope-reorder -m "not integration" $(TESTS); \
		passed=$$?; wait $$types || { cat $(VENV)/types.txt; exit 1; }; exit $$passed

check: $(VENV)/.dev lint ## in 5 to 10 minutes, while you work: lint, types, and the tests that need no other program
	$(BIN)/mypy & types=$$!; \
		SHOAL_EXAMPLES=few $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder \
		-m "not external and not long and not integration" $(TESTS); \
		passed=$$?; wait $$types && exit $$passed

integration: $(VENV)/.dev $(VENV)/.scale $(VENV)/.spark $(VENV)/.docs $(VENV)/.release $(VENV)/oracles ## what is slow and seldom breaks: long outages, Spark, quick benchmarks
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder -m integration $(TESTS)
	PYTHONPATH=$(VENV)/oracles $(BIN)/pytest -n 0 tests/privacy/test_gaussian.py -k "opendp or accountant"

newest: ## `make check` with the newest versions of everything, in an environment of its own
	$(MAKE) VENV=.venv-newest CONSTRAINTS= check

programs: ## install the programs that tests use beside Python (Debian and Ubuntu; asks for root's rights)
	sudo apt-get update
	sudo apt-get install --yes --no-install-recommends $(PROGRAMS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.bench ## in nearly two hours: measure speed and memory beside peers, into benchmarks/results
	$(BIN)/python -m benchmarks all

fuzz: $(VENV)/.dev ## 10^6 changed messages, requests and files against their readers, in hours; goes on where it ended
	SHOAL_FUZZ_CASES=1000000 SHOAL_FUZZ_FOLDER=$(CURDIR)/.fuzz \
		$(BIN)/python -m pytest -q -n 2 --dist loadfile -p no:logging --timeout 0 tests/hostile/fuzzing

soak: $(VENV)/.dev ## ten minutes of a federation under hostile messages, with a kill every 20 seconds for five
	$(BIN)/python -m tests.hostile.soak

chaos: $(VENV)/.dev ## random faults for MINUTES=1 by SEED=0, ON=sqlite or kafka; the history that they leave is checked
	$(BIN)/python -m tests.house.chaos --seed $(or $(SEED),0) --minutes $(or $(MINUTES),1) --on $(or $(ON),sqlite)

advisories: $(VENV)/advisories ## refuse tested versions that have a known vulnerability (asks the advisories of the package index)
	PYTHONPATH=$(VENV)/advisories $(BIN)/python -m pip_audit --requirement constraints.txt --no-deps --disable-pip

audit: $(VENV)/.dev ## attack the privacy of clients: 20 000 trials of each attack, 1 000 kills (about an hour)
	$(BIN)/shoal privacy audit --trials 20000 --kills 1000

promised: $(VENV)/.dev ## store what this version writes, for later versions to upgrade, in tests/house/promised/releases
	$(BIN)/python -m tests.house.promised_federation

screenshots: $(VENV)/.dev $(VENV)/.docs ## renew the screenshots of the live page and the diagrams in docs/pictures (needs Chromium, npx)
	$(BIN)/python -m tests.server_node.web_screenshot
	$(BIN)/python -m deploy.site_hooks

image: ## the container image of every process: `make image IMAGE=name:tag`
	docker build --file deploy/Dockerfile --tag $(IMAGE) .

docs: $(VENV)/.docs ## the documentation site in site/: warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

release: $(VENV)/.release ## sdist, wheel, notes, bill of materials and signed checksums in dist/: `make release KEY=FILE PROJECT_URL=URL` or `RELEASE=--draft`
	$(BIN)/python deploy/release.py $(if $(KEY),--key $(KEY)) $(if $(PROJECT_URL),--url $(PROJECT_URL)) $(RELEASE)

kafka-start: ## run Apache Kafka on this machine, 127.0.0.1:9092 (needs Java 17 and Maven)
	@$(PYTHON) deploy/kafka/broker.py start

kafka-stop: ## stop it; its data stays in ./kafka-data
	@$(PYTHON) deploy/kafka/broker.py stop

clean: ## remove the files that these commands created
	rm -rf $(VENV) .venv-newest site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis shoal-demo

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "shoal needs Python 3.11 or later; name one: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "this Python cannot make an environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }

# Beside the packages that it looks at.
$(VENV)/advisories: | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $@ pip-audit==2.10.1

# Beside the packages of the tests, of which dp-accounting would put one back to an older version.
$(VENV)/oracles: | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $@ opendp==0.16.0 dp-accounting==0.6.0

# Peers of a benchmark, of which claspy needs an older NumPy than the tests: on the path of their processes alone.
$(VENV)/states-peers: | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $@ claspy==0.2.8 hmmlearn==0.3.3 ruptures==1.1.10

$(VENV)/.%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing shoal[$*] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[$*]'
	@touch $@
