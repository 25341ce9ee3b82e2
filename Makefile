# Needs only Python 3.11 or later and make. A target first installs its requirements, which are pinned, into the
# virtual environment .venv: few for `run`, many more for the Spark targets and the tests. A stamp records what is
# installed, so that later targets do not use the network.
#
#   make run ARGS="--port 20911"                  make test ARGS="-k long_polling"      make bench KIND=stalls
#   make soak KIND=crash ROUNDS=20 SEED=7         make soak KIND=faults ARGS="--kind flipped" SEED=7
#   make soak KIND=histories MINUTES=5 SEED=7     make soak KIND=faults PLANTED=1
#   make PYTHON=python3.12 test                   make image-check INSTALL=1
#   make test DELTA=1 ARGS=tests/spark/test_delta.py

PYTHON ?= python3
# More test processes than cores where there are few, because many tests wait for other processes.
JOBS ?= $(shell n=$$(nproc); [ $$n -lt 3 ] && echo $$((3 * n)) || echo 6)

# Bytecode is kept whatever the environment says: a broker that compiles every module at its start needs three times
# the time, and a test run starts hundreds.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
# An environment with pip; the packages that broker, client and command line import; these themselves, compiled.
VENV_READY := $(VENV)/.ready-venv
PACKAGES := $(VENV)/.ready-packages
REPUT := $(VENV)/.ready-reput
# All of it; with the extras of a service, etcd, grpc and otel; with NumPy; with Spark; with everything and the development
# tools; with the older Spark that Delta's newest version is for, next to the other; and with those of the documentation.
RUN := $(PACKAGES) $(REPUT)
SERVICE := $(VENV)/.ready-service
COLUMNS := $(VENV)/.ready-columns
SPARK := $(VENV)/.ready-spark
DEV := $(VENV)/.ready-dev
DELTA_SPARK := $(VENV)/.ready-delta
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
MAKEFLAGS += $(if $(filter 0,$(MAKELEVEL)),--jobs=2)
LOCK := --universal --python-version 3.11 --generate-hashes --custom-compile-command "make lock"
LOCK += --no-emit-index-url --no-emit-find-links --no-emit-package reput-client
# uv; it is downloaded into build/ if it is not installed.
UV := set -e; export PATH="$$PATH:$(CURDIR)/build/uv/bin"; command -v uv >/dev/null || { $(PYTHON) -m venv build/uv \
	&& build/uv/bin/python -m pip install --quiet uv; };

# `make bench KIND=...` measures: these are in benchmarks/KIND.py but for those that say their programs.
BENCHES := console delay filters groups lakehouse libraries memory peers proxy replication scaling security spark stalls store tasks topics verify
BENCH_memory := idle_clients many_queues
BENCH_peers := peers_run
BENCH_spark := spark_run
# `make demo KIND=...`, without KIND the first.
DEMO_ := demo.py
DEMO_java := java_and_python.py
DEMO_shop := order_service
DEMO_spark := pipeline_demo.py
# What kinds of these need besides; the others need $(RUN).
NEEDS_lakehouse := $(DEV)
NEEDS_peers := $(COLUMNS)
NEEDS_proxy := $(DEV)
NEEDS_replication := $(SERVICE)
NEEDS_spark := $(SPARK)
NEEDS_tasks := $(DEV)
# `make proxy KIND=...`; without KIND, Reput's.
PROXIES := apache
# `make interop KIND=...`; without KIND, all of RocketMQ's clients.
INTEROP_ := interop/run.py
INTEROP_celery := tasks/own_tests.py
INTEROP_django := tasks/django_own_tests.py
INTEROP_grpc := interop/run.py --grpc
# `make soak KIND=...`: each is tests/KIND/run.py, where `-` is `_`. Variables become options of their names.
SOAKS := cluster-faults crash faults filters fuzz fuzz-kernel histories hostile ops outages outbox pipeline-faults \
	round-trip proxy-faults scan schedules simulation sweep task-faults
OPTIONS = $(foreach name,CASES IMAGES MESSAGES MINUTES ROUNDS SEED SEEDS,$(if $($(name)),--$(shell echo $(name) | \
	tr A-Z a-z) $($(name))))
one_of = $(or $(filter $(1),$(2)),$(error KIND is one of: $(2)))

.DEFAULT_GOAL := help
.PHONY: help setup run cluster proxy test check format figures demo bench soak interop conformance image-check
.PHONY: check-types check-platforms console-pictures docs dist lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(DEV) ## create .venv with the requirements of all targets (each target also installs its own)
	@:

$(VENV_READY): requirements-pip.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is not Python 3.11 or later; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -n "$(BUNDLED_PIP)" || \
		{ echo "error: $(PYTHON) has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "$(if $(wildcard $(VENV)),replacing $(VENV): ,)installing the broker, the client and the command line into $(VENV)" >&2
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

# It is found before the one in the environment by programs that have the directory in PYTHONPATH.
$(DELTA_SPARK): requirements-delta.lock $(DEV)
	@echo "installing another Spark, and Delta's package for it, into $(VENV)/delta, about 0.5 GiB" >&2
	@rm -rf $(VENV)/delta
	@$(PIP) install --no-deps --require-hashes --target $(VENV)/delta -r $<
	@touch $@

$(DOCS): requirements-docs.lock $(VENV_READY)
	@echo "installing Zensical into $(VENV)" >&2
	@$(PIP) install --no-compile --no-deps --require-hashes -r $<
	@touch $@

run: $(RUN) ## start the broker with conf/broker.toml; Ctrl-C stops it
	$(BIN)/reput serve -c conf/broker.toml $(ARGS)

cluster: $(SERVICE) ## start three brokers, etcd and a name service in reput-cluster/; Ctrl-C stops them
	$(BIN)/python tools/cluster.py $(ARGS)

proxy: $(if $(KIND),$(RUN),$(SERVICE)) ## a proxy for gRPC clients, in front of 127.0.0.1:10911; KIND=apache is RocketMQ's (java, mvn)
	$(if $(KIND),$(if $(call one_of,$(KIND),$(PROXIES)),$(BIN)/python tests/interop/run_proxy.py),$(BIN)/reput proxy) $(ARGS)

test: $(if $(DELTA),$(DELTA_SPARK),$(DEV)) $(DOCS) ## run all tests with JOBS processes, each file in one of them; those of the kernel in both forms
	$(if $(DELTA),PYTHONPATH=$(CURDIR)/$(VENV)/delta )$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)
	$(if $(ARGS),,KERNEL=interpreted $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(KERNEL_TESTS))

check: check-types check-platforms ## check style, types and import rules; changes nothing

check-types: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

check-platforms: $(DEV)
	for platform in win32 darwin; do $(BIN)/mypy --platform $$platform --cache-dir .mypy_cache/$$platform \
		-p reput_client -p reput_protocol || exit 1; done

format: $(DEV) ## format the code as `make check` requires, and write conf/broker.toml, docs/reference and docs/pictures from the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/broker_toml.py
	PYTHONPATH=tools $(BIN)/python -m docs_reference
	PYTHONPATH=tools $(BIN)/python -m docs_pictures

figures: $(RUN) ## count the source's size and wiring, and the calls of one send and one pull; ARGS=--list names them
	$(BIN)/python tools/source_figures.py $(ARGS)

demo: $(or $(NEEDS_$(KIND)),$(RUN)) ## send and count Python's own lines; KIND=shop, java (java, mvn; ARGS=--reverse) or spark
	$(BIN)/python examples/$(or $(DEMO_$(KIND)),$(error KIND is shop, java or spark)) $(ARGS)

bench: $(or $(NEEDS_$(KIND)),$(RUN)) ## measure speed and memory on this machine; with KIND a part (docs/performance.md)
	$(foreach program,$(or $(BENCH_$(KIND)),$(if $(KIND),$(call one_of,$(KIND),$(BENCHES)),run)),PYTHONPATH=benchmarks \
		$(BIN)/python benchmarks/$(program).py $(ARGS) &&) true

soak: $(DEV) ## KIND: break, attack or check the broker for long (CONTRIBUTING.md); with PLANTED=1 with planted bugs; SEED repeats
	$(BIN)/python tests/$(subst -,_,$(call one_of,$(KIND),$(SOAKS)))/run.py $(if $(PLANTED),--bug only) $(OPTIONS) $(ARGS)

interop: $(DEV) ## check RocketMQ's clients against a broker, feature by feature, and print tables (java, mvn, node, npm, go, cargo); KIND=grpc: gRPC clients through both proxies; KIND=celery: the tests of Celery and Kombu themselves (redis-server); KIND=django: Django's (Python 3.12)
	$(BIN)/python tests/$(or $(INTEROP_$(KIND)),$(error KIND is celery, django or grpc)) $(ARGS)

conformance: $(DEV) ## open directories alternately with this broker and Apache RocketMQ (java, mvn), and compare
	$(BIN)/python -m pytest tests/conformance --long $(ARGS)

image-check: $(DEV) ## build the image and run it; INSTALL=1 may install what is missing with apt
	$(BIN)/python tools/image_check.py $(if $(INSTALL),--install) $(ARGS)

console-pictures: $(DEV) ## write a picture of each page of the console to docs/console (Chromium)
	PYTHONPATH=tests $(BIN)/python -m support.console_pictures $(ARGS)

docs: $(DOCS) ## build the documentation into build/site and check its links; its commands and programs are among the tests
	$(BIN)/python tools/docs_site.py
	@echo "to read it, with the search: $(BIN)/python -m http.server -d build/site"

dist: ## build both distributions into dist/, for each of VERSIONS (3.11 3.12 3.13 3.14), install and try each
	@$(UV) $(PYTHON) tools/dist.py $(VERSIONS)

lock: pyproject.toml client/pyproject.toml ## choose new versions for the lock files
	@$(UV) set -x; \
		uv pip compile $(LOCK) --upgrade --extra dev --extra spark --extra spark-connect --extra bucket --extra delta --extra iceberg pyproject.toml -o requirements.lock; \
		uv pip compile $(LOCK) --upgrade -c requirements.lock pyproject.toml -o requirements-runtime.lock; \
		uv pip compile $(LOCK) --upgrade -c requirements.lock --extra spark --extra bucket --extra delta --extra iceberg pyproject.toml -o requirements-spark.lock; \
		uv pip compile $(LOCK) --upgrade -c requirements.lock --extra etcd --extra otel --extra grpc pyproject.toml -o requirements-service.lock; \
		printf "delta-spark==4.4.0\n" | uv pip compile $(LOCK) --upgrade - -o requirements-delta.lock; \
		printf "pip\n" | uv pip compile $(LOCK) --upgrade - -o requirements-pip.lock; \
		printf "numpy\n" | uv pip compile $(LOCK) --upgrade -c requirements.lock - -o requirements-columns.lock; \
		printf "cython\nhatchling\nsetuptools\n" | uv pip compile $(LOCK) --upgrade -c requirements.lock - -o requirements-build.lock; \
		printf "zensical\nmkdocstrings-python\n" | uv pip compile $(LOCK) --upgrade -c requirements.lock - -o requirements-docs.lock

clean: ## remove what the other targets made, .venv included; never a data directory
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Names that targets had.
is = +@echo "make $@ is now: make $(1)" >&2; $(MAKE) --no-print-directory $(1) $(if $(KIND),ARGS="--kind '$(KIND)' $(ARGS)")
.PHONY: example example-java pipeline-demo simulate planted histories-planted simulate-planted pipeline-planted
.PHONY: ops-check pipeline-roundtrip pipeline-clusters $(SOAKS)
bench-%:            ; $(call is,bench KIND=$*)
example:            ; $(call is,demo KIND=shop)
example-java:       ; $(call is,demo KIND=java)
pipeline-demo:      ; $(call is,demo KIND=spark)
$(SOAKS):           ; $(call is,soak KIND=$@)
simulate:           ; $(call is,soak KIND=simulation SEEDS=$(or $(SEEDS),1000))
planted:            ; $(call is,soak KIND=faults PLANTED=1)
histories-planted:  ; $(call is,soak KIND=histories PLANTED=1)
simulate-planted:   ; $(call is,soak KIND=simulation PLANTED=1)
pipeline-planted:   ; $(call is,soak KIND=pipeline-faults PLANTED=1)
pipeline-roundtrip: ; $(call is,soak KIND=round-trip)
ops-check:          ; $(call is,soak KIND=ops)
pipeline-clusters:  ; $(call is,test CLUSTERS=all ARGS="tests/spark/test_clusters.py $(ARGS)")
