# Needs only Python 3.11 or later and make. A target first installs its requirements, which are pinned, into the
# virtual environment .venv: few for `run`, many more for the Spark targets and the tests. A stamp records what is
# installed, so that later targets do not use the network.
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
SEEDS ?=
KIND ?=
MINUTES ?=
MESSAGES ?=
INSTALL ?=
VERSIONS ?=
# One more test process than cores, because many tests wait for other processes.
JOBS ?= $(shell n=$$(nproc); [ $$n -lt 4 ] && echo $$((n + 1)) || echo 4)

# Bytecode is kept whatever the environment says: a broker that compiles every module at its start needs three times
# the time, and a test run starts hundreds.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
# An environment with pip; the packages that broker, client and command line import; these themselves, compiled.
VENV_READY := $(VENV)/.ready-venv
PACKAGES := $(VENV)/.ready-packages
REPUT := $(VENV)/.ready-reput
# All of it; with the extras of a service, etcd and otel; with NumPy; with Spark; with everything and the development
# tools; and with those of the documentation.
RUN := $(PACKAGES) $(REPUT)
SERVICE := $(VENV)/.ready-service
COLUMNS := $(VENV)/.ready-columns
SPARK := $(VENV)/.ready-spark
DEV := $(VENV)/.ready-dev
DOCS := $(VENV)/.ready-docs
BUILD := $(CURDIR)/$(VENV)/build
# The sources of the compiled kernel; the next target compiles changed ones if there is a C compiler.
KERNEL := $(foreach kind,py pxd h,$(wildcard protocol/reput_protocol/kernel/*.$(kind)))
# These run once more with the kernel interpreted.
KERNEL_TESTS := tests/unit/protocol tests/property tests/golden
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# The wheel of pip that comes with Python, in ensurepip or where the distribution keeps it. It is run as it is, to
# install a pip that evaluates indexes in a third of the time; `venv` would first install and compile the old one.
BUNDLED_PIP = $(shell $(PYTHON) -c 'import ensurepip, glob, sysconfig; \
	folder = sysconfig.get_config_var("WHEEL_PKG_DIR") or ensurepip.__path__[0] + "/_bundled"; \
	print(max(glob.glob(folder + "/pip-*.whl")) + "/pip")' 2>/dev/null)
# The packages are installed while the kernel is compiled.
MAKEFLAGS += --jobs=2
LOCK := --universal --python-version 3.11 --generate-hashes --custom-compile-command "make lock"
LOCK += --no-emit-index-url --no-emit-find-links --no-emit-package reput-client
# uv; it is downloaded into build/ if it is not installed.
UV := set -e; export PATH="$$PATH:$(CURDIR)/build/uv/bin"; command -v uv >/dev/null || { $(PYTHON) -m venv build/uv \
	&& build/uv/bin/python -m pip install --quiet uv; };

.DEFAULT_GOAL := help
.PHONY: help setup run test check figures format demo example example-java pipeline-demo bench bench-peers bench-stalls bench-delay
.PHONY: bench-scaling bench-replication bench-security bench-groups bench-memory bench-store bench-libraries bench-console console-pictures bench-spark crash faults planted histories histories-planted
.PHONY: simulate simulate-planted ops-check
.PHONY: cluster cluster-faults filters fuzz fuzz-kernel scan sweep hostile conformance image-check
.PHONY: interop proxy pipeline-faults pipeline-planted pipeline-clusters pipeline-roundtrip docs dist lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(DEV) ## create .venv with the requirements of all targets (each target also installs its own)
	@:

$(VENV_READY): requirements-pip.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is not Python 3.11 or later; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -n "$(BUNDLED_PIP)" || \
		{ echo "error: $(PYTHON) has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "installing the broker, the client and the command line into $(VENV)" >&2
	@$(PYTHON) -m venv --clear --without-pip $(VENV)
	@$(BIN)/python $(BUNDLED_PIP) --disable-pip-version-check --quiet install --no-compile --no-deps --require-hashes -r $<
	@touch $@

# The lock files name every package, so that pip has nothing to resolve. Modules are byte-compiled on first use, except
# those of Spark, whose Python workers have ten seconds to start.
$(PACKAGES): requirements-runtime.lock $(VENV_READY)
	@$(PIP) install --no-compile --no-deps --require-hashes -r $<
	@touch $@

$(REPUT): requirements-build.lock pyproject.toml client/pyproject.toml client/hatch_build.py $(KERNEL) $(VENV_READY)
	@rm -rf $(BUILD)
	@$(PIP) install --no-compile --no-deps --require-hashes --target $(BUILD) -r $<
	@echo "compiling, half a minute of processor time; REPUT_KERNEL=interpreted leaves it out" >&2
	@PYTHONPATH=$(BUILD) $(PIP) install --no-compile --no-deps --no-build-isolation \
		--editable client --editable .
	@rm -rf $(BUILD)
	@touch $@

$(SERVICE): requirements-service.lock $(RUN)
	@$(PIP) install --no-compile --no-deps --require-hashes -r $<
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
	@$(PIP) install --no-compile --no-deps --require-hashes -r $<
	@touch $@

$(DOCS): requirements-docs.lock $(DEV)
	@echo "installing mkdocs into $(VENV)" >&2
	@$(PIP) install --no-compile --no-deps --require-hashes -r $<
	@touch $@

run: $(RUN) ## start the broker with conf/broker.toml; Ctrl-C stops it
	$(BIN)/reput serve -c conf/broker.toml $(ARGS)

cluster: $(SERVICE) ## start three brokers, etcd and a name service in reput-cluster/; Ctrl-C stops them
	$(BIN)/python tools/cluster.py $(ARGS)

test: $(DEV) ## run all tests with JOBS processes, each file in one of them; those of the kernel in both forms
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)
	$(if $(ARGS),,KERNEL=interpreted $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(KERNEL_TESTS))

check: $(DEV) ## check style, types and import rules; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

figures: $(RUN) ## count the source's size and wiring, and the calls of one send and one pull; ARGS=--list names them
	$(BIN)/python tools/source_figures.py $(ARGS)

format: $(DEV) ## format the code as `make check` requires, and write conf/broker.toml from the options
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/broker_toml.py

demo: $(RUN) ## send the lines of Python's standard library through a broker, and count them
	$(BIN)/python examples/demo.py $(ARGS)

pipeline-demo: $(SPARK) ## the same lines with Spark: archive them to Parquet, count identifiers in three ways, compare
	$(BIN)/python examples/pipeline_demo.py $(ARGS)

example: $(RUN) ## a small shop: transactions, retries, dead letters, delayed reminders; checks how every order ends
	$(BIN)/python examples/order_service $(ARGS)

example-java: $(RUN) ## a Java producer with a Python consumer, and the reverse with ARGS=--reverse (java, mvn)
	$(BIN)/python examples/java_and_python.py $(ARGS)

bench: $(RUN) ## measure speed and memory on this machine
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-peers: $(COLUMNS) ## compare with Kafka, Redis, NATS, RabbitMQ and RocketMQ, fetched into build/peers (apt-get, mvn, java, PyPI)
	PYTHONPATH=benchmarks $(BIN)/python -m peers.run $(ARGS)

bench-stalls: $(RUN) ## measure whether one client delays another: a producer alone, and with cold reads, flushes, new files, lists
	$(BIN)/python benchmarks/stalls.py $(ARGS)

bench-scaling: $(RUN) ## measure throughput and cost by connections, queues, message size, store size
	$(BIN)/python benchmarks/scaling.py $(ARGS)

bench-delay: $(RUN) ## measure how late delayed messages are, with 100,000 of them pending
	$(BIN)/python benchmarks/delay.py $(ARGS)

bench-groups: $(RUN) ## measure consumer groups compared with plain pulls: throughput of four members, latency of one message
	$(BIN)/python benchmarks/groups.py $(ARGS)

bench-replication: $(SERVICE) ## measure a slave: against none, against Apache RocketMQ (mvn, java), lag, failover (etcd)
	PYTHONPATH=benchmarks $(BIN)/python benchmarks/replication.py $(ARGS)

bench-security: $(RUN) ## measure what signatures and TLS cost, with RocketMQ's own benchmark against both brokers (mvn, java, openssl)
	PYTHONPATH=benchmarks $(BIN)/python benchmarks/security.py $(ARGS)

bench-memory: $(RUN) ## measure the broker's memory for 9,000 idle clients, 10,000 queues and 1,000 groups
	$(BIN)/python benchmarks/idle_clients.py
	$(BIN)/python benchmarks/many_queues.py

bench-store: $(RUN) ## measure the store alone: dispatch, opening, recovery, key queries, verify, filters
	$(BIN)/python benchmarks/store.py $(ARGS)
	$(BIN)/python benchmarks/verify.py
	$(BIN)/python benchmarks/filters.py

bench-libraries: $(RUN) ## measure msgpack against msgspec for headers, and our metrics page against prometheus_client's
	$(BIN)/python benchmarks/libraries.py

bench-console: $(RUN) ## measure what five browsers with the console, and a scrape a second, cost the broker and its puts
	$(BIN)/python benchmarks/console.py $(ARGS)

bench-spark: $(SPARK) ## measure the pipeline on Spark: sources, sink, archive, audit, as one table of ratios
	$(BIN)/python benchmarks/spark_run.py $(ARGS)

ops-check: $(DEV) ## fire and clear each alert, ask each query of the dashboard, open each page of the console (root, prometheus, chromium, cc)
	$(BIN)/python tests/ops/run.py $(ARGS)

console-pictures: $(DEV) ## write a picture of each page of the console to docs/console (Chromium)
	PYTHONPATH=tests $(BIN)/python -m support.console_pictures

crash: $(DEV) ## kill the broker ROUNDS times (200) and check that no acknowledged message is missing; SEED repeats a run
	$(BIN)/python tests/crash/run.py $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

faults: $(DEV) ## break the disk under the store: IMAGES power cuts and the other kinds, ROUNDS full disks; SEED, KIND
	$(BIN)/python tests/faults/run.py $(if $(IMAGES),--images $(IMAGES)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(SEED),--seed $(SEED)) $(if $(KIND),--kind '$(KIND)') $(ARGS)

planted: $(DEV) ## plant bugs in the store, and check that `make faults` finds each; SEED
	$(BIN)/python tests/faults/run.py --bug only $(if $(SEED),--seed $(SEED)) $(ARGS)

pipeline-faults: $(DEV) ## kill Spark drivers and brokers under sink, archive and replay, and count rows; KIND, SEED
	$(BIN)/python tests/pipeline_faults/run.py $(if $(KIND),--kind '$(KIND)') $(if $(SEED),--seed $(SEED)) $(ARGS)

pipeline-planted: $(DEV) ## plant bugs in sink, archive, replay and broker, and check that pipeline-faults finds each; KIND, SEED
	$(BIN)/python tests/pipeline_faults/run.py --bug only $(if $(KIND),--kind '$(KIND)') $(if $(SEED),--seed $(SEED)) $(ARGS)

pipeline-clusters: $(DEV) ## run a streaming query on local[2], local-cluster, and a master with two workers
	CLUSTERS=all $(BIN)/python -m pytest tests/spark/test_clusters.py $(ARGS)

pipeline-roundtrip: $(DEV) ## archive, replay, archive again, and compare MESSAGES (1000000) except for the broker's fields
	$(BIN)/python tests/round_trip/run.py $(if $(MESSAGES),--messages $(MESSAGES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

histories: $(DEV) ## kill members and broker of groups for MINUTES (3), and check the recorded history; SEED repeats a run
	$(BIN)/python tests/histories/run.py $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

histories-planted: $(DEV) ## plant bugs in broker and client, and check that `make histories` finds each; SEED
	$(BIN)/python tests/histories/run.py --bug only $(if $(SEED),--seed $(SEED)) $(ARGS)

simulate: $(DEV) ## simulate brokers, clients, network and disks in virtual time: SEEDS (1000) from SEED on, each judged
	$(BIN)/python tests/simulation/run.py $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SEED),--first $(SEED)) $(ARGS)

simulate-planted: $(DEV) ## plant bugs in replication and election, and check that `make simulate` finds each; SEED
	$(BIN)/python tests/simulation/run.py --bug only $(if $(SEED),--first $(SEED)) $(ARGS)

hostile: $(DEV) ## attack a broker for MINUTES (10) with each of two lists, next to a well-behaved client
	$(BIN)/python tests/hostile/run.py $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

cluster-faults: $(DEV) ## break three brokers with etcd, each in a network namespace, for MINUTES (10), and check the history; root; SEED
	$(BIN)/python tests/cluster_faults/run.py $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

filters: $(DEV) ## compare filters with an independent evaluation, CASES times (10000); SEED repeats a run
	$(BIN)/python tests/filters/run.py $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: $(DEV) ## send invalid data to the ports: CASES (1000000) to HTTP, and changed requests of clients per type of header; KIND, SEED
	$(BIN)/python tests/fuzz/run.py $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED)) \
		$(if $(KIND),--kind '$(KIND)') $(ARGS)

scan: $(DEV) ## try from another network namespace what a client without a user can do to the image's broker (root)
	$(BIN)/python tests/scan/run.py $(ARGS)

sweep: $(DEV) ## put names of others into every field and property, as a user without rights, and look for effects
	$(BIN)/python tests/sweep/run.py $(ARGS)

fuzz-kernel: $(DEV) ## read CASES (10000000) damaged records with the kernel, bounds checked and under AddressSanitizer; SEED
	$(BIN)/python tests/fuzz/kernel.py $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

conformance: $(DEV) ## open directories alternately with this broker and Apache RocketMQ (java, mvn), and compare
	$(BIN)/python -m pytest tests/conformance --long $(ARGS)

interop: $(DEV) ## check RocketMQ's clients against a broker, feature by feature, and print a table (java, mvn, node, npm, go, cargo)
	$(BIN)/python tests/interop/run.py $(ARGS)

proxy: $(RUN) ## RocketMQ's proxy for gRPC clients, in front of 127.0.0.1:10911 (java, mvn); --help in ARGS lists options
	$(BIN)/python tests/interop/run_proxy.py $(ARGS)

image-check: $(DEV) ## build the image and run it; INSTALL=1 may install what is missing with apt
	$(BIN)/python tools/image_check.py $(if $(INSTALL),--install) $(ARGS)

docs: $(DOCS) ## build the documentation into build/site, and run the commands and programs in it
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	$(BIN)/python -m pytest tests/docs $(ARGS)
	@echo "to read it, with the search: $(BIN)/python -m http.server -d build/site"

dist: ## build both distributions into dist/, for each of VERSIONS (3.11 3.12 3.13 3.14), install and try each
	@$(UV) $(PYTHON) tools/dist.py $(VERSIONS)

lock: pyproject.toml client/pyproject.toml ## choose new versions for the lock files
	@$(UV) set -x; \
		uv pip compile $(LOCK) --upgrade --extra dev --extra spark pyproject.toml -o requirements.lock; \
		uv pip compile $(LOCK) --upgrade -c requirements.lock pyproject.toml -o requirements-runtime.lock; \
		uv pip compile $(LOCK) --upgrade -c requirements.lock --extra spark pyproject.toml -o requirements-spark.lock; \
		uv pip compile $(LOCK) --upgrade -c requirements.lock --extra etcd --extra otel pyproject.toml -o requirements-service.lock; \
		printf "pip\n" | uv pip compile $(LOCK) --upgrade - -o requirements-pip.lock; \
		printf "numpy\n" | uv pip compile $(LOCK) --upgrade -c requirements.lock - -o requirements-columns.lock; \
		printf "cython\nhatchling\nsetuptools\n" | uv pip compile $(LOCK) --upgrade -c requirements.lock - -o requirements-build.lock; \
		printf "mkdocs-material\nmkdocstrings-python\n" | uv pip compile $(LOCK) --upgrade -c requirements.lock - -o requirements-docs.lock

clean: ## remove what the other targets made, .venv included; never a data directory
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
