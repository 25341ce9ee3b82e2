# Everything needs Python 3.11 or later and make, nothing else. A target first installs what it lacks into a virtual
# environment, .venv, from pinned requirements: `run` little, the Spark targets and the tests much more. A stamp says
# what is there, and later targets touch no network.
#
#   make run ARGS="--port 20911"      make test ARGS="-k long_polling"      make crash ROUNDS=20 SEED=7
#   make faults IMAGES=1000 ROUNDS=3      make faults KIND=flipped SEED=7      make histories MINUTES=5 SEED=7
#   make PYTHON=python3.12 test       make image-check INSTALL=1

PYTHON ?= python3
ARGS ?=
ROUNDS ?=
CASES ?=
IMAGES ?=
SEED ?=
KIND ?=
MINUTES ?=
MESSAGES ?=
INSTALL ?=
VERSIONS ?=
# Many tests wait for processes, so that one more of them than there are cores runs at a time.
JOBS ?= $(shell n=$$(nproc); [ $$n -lt 4 ] && echo $$((n + 1)) || echo 4)

VENV := .venv
BIN := $(VENV)/bin
# Broker, client and command line; that and NumPy; that and Spark; all of it and the development tools.
RUN := $(VENV)/.ready-run
COLUMNS := $(VENV)/.ready-columns
SPARK := $(VENV)/.ready-spark
DEV := $(VENV)/.ready-dev
BUILD := $(CURDIR)/$(VENV)/build
# What becomes machine code where there is a C compiler: a change of it is compiled by the next target.
KERNEL := $(foreach kind,py pxd h,$(wildcard protocol/reput_protocol/kernel/*.$(kind)))
# These run once more with the kernel interpreted.
KERNEL_TESTS := tests/unit/protocol tests/property tests/golden
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LOCK := --universal --python-version 3.11 --generate-hashes --custom-compile-command "make lock"
LOCK += --no-emit-index-url --no-emit-find-links
# uv, fetched into build/ where it is not installed.
UV := set -e; export PATH="$$PATH:$(CURDIR)/build/uv/bin"; command -v uv >/dev/null || { $(PYTHON) -m venv build/uv \
	&& build/uv/bin/python -m pip install --quiet uv; };

.DEFAULT_GOAL := help
.PHONY: help setup run test check format demo example pipeline-demo bench bench-peers bench-stalls bench-delay
.PHONY: bench-scaling bench-groups bench-memory bench-store bench-spark crash faults planted histories histories-planted
.PHONY: filters fuzz fuzz-kernel hostile conformance image-check
.PHONY: pipeline-faults pipeline-planted pipeline-clusters pipeline-roundtrip wheels lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(DEV) ## make .venv with all that any target needs (every target sees to what it needs by itself)
	@:

# The lock files name every package, so that pip has nothing to resolve. Byte code comes when it is first needed.
$(RUN): requirements-runtime.lock requirements-build.lock pyproject.toml hatch_build.py $(KERNEL)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is not Python 3.11 or later; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || \
		{ echo "error: $(PYTHON) has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "installing the broker, the client and the command line into $(VENV)" >&2
	@$(PIP) install --no-compile --no-deps --require-hashes -r requirements-runtime.lock
	@$(PIP) install --no-compile --no-deps --require-hashes --target $(BUILD) -r requirements-build.lock
	@PYTHONPATH=$(BUILD) $(PIP) install --no-compile --no-deps --no-build-isolation --editable .
	@rm -rf $(BUILD)
	@touch $@

$(COLUMNS): requirements-columns.lock $(RUN)
	@echo "installing NumPy into $(VENV)" >&2
	@$(PIP) install --no-compile --no-deps --require-hashes -r $<
	@touch $@

$(SPARK): requirements-spark.lock $(RUN)
	@echo "installing Spark and a Java runtime into $(VENV), about 1 GiB" >&2
	@$(PIP) install --no-deps --require-hashes -r $<
	@touch $@

$(DEV): requirements.lock $(SPARK)
	@echo "installing the development tools into $(VENV)" >&2
	@$(PIP) install --no-deps --require-hashes -r $<
	@touch $@

run: $(RUN) ## start the broker with conf/broker.toml; Ctrl-C drains and ends it
	$(BIN)/reput serve -c conf/broker.toml $(ARGS)

test: $(DEV) ## run all tests, those of one file in one process, JOBS processes at once; the kernel's in both forms
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)
	$(if $(ARGS),,KERNEL=interpreted $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(KERNEL_TESTS))

check: $(DEV) ## style, types, import rules; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typing_public_api.py hatch_build.py tools/*.py examples/*.py benchmarks/*.py
	$(BIN)/mypy benchmarks/peers/*.py benchmarks/peers/*/*.py
	MYPYPATH=examples/order_service $(BIN)/mypy examples/order_service/*.py
	$(BIN)/lint-imports

format: $(DEV) ## rewrite the code as `make check` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(RUN) ## every line of Python's standard library through a broker and back, counted
	$(BIN)/python examples/demo.py $(ARGS)

pipeline-demo: $(SPARK) ## the same lines on Spark: from the broker to Parquet, identifiers counted, three totals compared
	$(BIN)/python examples/pipeline_demo.py $(ARGS)

example: $(RUN) ## a small shop: transactions, retries, dead letters, a reminder for later; every order must end as it should
	$(BIN)/python examples/order_service $(ARGS)

bench: $(RUN) ## measure speed and memory on this machine
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-peers: $(COLUMNS) ## compare with Kafka, Redis, NATS, RabbitMQ and RocketMQ, fetched into build/peers (apt-get, mvn, java, PyPI)
	PYTHONPATH=benchmarks $(BIN)/python -m peers.run $(ARGS)

bench-stalls: $(RUN) ## does anybody stall anybody: a producer alone, and beside cold reads, flushes, new files, tables, lists
	$(BIN)/python benchmarks/stalls.py $(ARGS)

bench-scaling: $(RUN) ## throughput and cost against connections, queues, message size, store size
	$(BIN)/python benchmarks/scaling.py $(ARGS)

bench-delay: $(RUN) ## measure how late delayed messages are, with 100,000 of them waiting
	$(BIN)/python benchmarks/delay.py $(ARGS)

bench-groups: $(RUN) ## measure consumer groups against plain pulls: how fast four members drain, how long one message takes
	$(BIN)/python benchmarks/groups.py $(ARGS)

bench-memory: $(RUN) ## measure what 9,000 idle clients, 10,000 queues and 1,000 groups cost the broker
	$(BIN)/python benchmarks/idle_clients.py
	$(BIN)/python benchmarks/many_queues.py

bench-store: $(RUN) ## measure the store alone: dispatch, opening, recovery, key queries, verify, filters
	$(BIN)/python benchmarks/store.py $(ARGS)
	$(BIN)/python benchmarks/verify.py
	$(BIN)/python benchmarks/filters.py

bench-spark: $(SPARK) ## measure the pipeline on Spark: sources, sink, archive, audit, as one table of ratios
	$(BIN)/python benchmarks/spark_run.py $(ARGS)

crash: $(DEV) ## kill the broker ROUNDS times (200) and look for what it lost; SEED repeats a run
	$(BIN)/python tests/crash/run.py $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

faults: $(DEV) ## break the disk under the store: IMAGES power cuts and the other kinds, ROUNDS full disks; SEED, KIND
	$(BIN)/python tests/faults/run.py $(if $(IMAGES),--images $(IMAGES)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(SEED),--seed $(SEED)) $(if $(KIND),--kind '$(KIND)') $(ARGS)

planted: $(DEV) ## plant bugs in the store one by one: does the checker of each kind of fault catch its own? SEED
	$(BIN)/python tests/faults/run.py --bug only $(if $(SEED),--seed $(SEED)) $(ARGS)

pipeline-faults: $(DEV) ## kill Spark drivers and brokers under sink, archive and replay, and count rows; KIND, SEED
	$(BIN)/python tests/pipeline_faults/run.py $(if $(KIND),--kind '$(KIND)') $(if $(SEED),--seed $(SEED)) $(ARGS)

pipeline-planted: $(DEV) ## plant bugs in sink, archive, replay and broker: does the counting catch them? KIND, SEED
	$(BIN)/python tests/pipeline_faults/run.py --bug only $(if $(KIND),--kind '$(KIND)') $(if $(SEED),--seed $(SEED)) $(ARGS)

pipeline-clusters: $(DEV) ## one streaming query on local[2], local-cluster, and a master with two workers
	CLUSTERS=all $(BIN)/python -m pytest tests/spark/test_clusters.py $(ARGS)

pipeline-roundtrip: $(DEV) ## archive, replay, archive again: MESSAGES (1000000) must be equal in all but offsets and store fields
	$(BIN)/python tests/round_trip/run.py $(if $(MESSAGES),--messages $(MESSAGES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

histories: $(DEV) ## churn groups and a broker for MINUTES (3), record everything, judge it; SEED repeats a churn
	$(BIN)/python tests/histories/run.py $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

histories-planted: $(DEV) ## plant bugs in broker and client one by one: do the judges of histories catch them? SEED
	$(BIN)/python tests/histories/run.py --bug only $(if $(SEED),--seed $(SEED)) $(ARGS)

hostile: $(DEV) ## attack a broker for MINUTES (10) with each of two lists, next to a well-behaved client
	$(BIN)/python tests/hostile/run.py $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

filters: $(DEV) ## compare filters with an independent evaluation, CASES times (10000); SEED repeats a run
	$(BIN)/python tests/filters/run.py $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: $(DEV) ## send the ports what no client should: CASES (1000000) at the HTTP port, a tenth in frames; KIND, SEED
	$(BIN)/python tests/fuzz/run.py $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED)) \
		$(if $(KIND),--kind '$(KIND)') $(ARGS)

fuzz-kernel: $(DEV) ## read CASES (10000000) damaged records with the kernel, bounds checked and under AddressSanitizer; SEED
	$(BIN)/python tests/fuzz/kernel.py $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

conformance: $(DEV) ## hand directories to and fro between this broker and Apache RocketMQ (java, mvn) and count
	$(BIN)/python -m pytest tests/conformance $(ARGS)

image-check: $(DEV) ## build the image and run it; INSTALL=1 may install what is missing with apt
	$(BIN)/python tools/image_check.py $(if $(INSTALL),--install) $(ARGS)

wheels: ## build the source distribution and a compiled wheel for each of VERSIONS (3.11 3.12 3.13 3.14) into dist/
	@$(UV) $(PYTHON) tools/wheels.py $(VERSIONS)

lock: pyproject.toml ## choose new versions for the lock files
	@$(UV) set -x; \
		uv pip compile $(LOCK) --upgrade --extra dev --extra spark pyproject.toml -o requirements.lock; \
		uv pip compile $(LOCK) --upgrade -c requirements.lock pyproject.toml -o requirements-runtime.lock; \
		uv pip compile $(LOCK) --upgrade -c requirements.lock --extra spark pyproject.toml -o requirements-spark.lock; \
		printf "numpy\n" | uv pip compile $(LOCK) --upgrade -c requirements.lock - -o requirements-columns.lock; \
		printf "cython\nhatchling\neditables\nsetuptools\n" | uv pip compile $(LOCK) --upgrade -c requirements.lock - -o requirements-build.lock

clean: ## remove what the other targets made, .venv included; never a data directory
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
