# The stage `build` has a C compiler and makes a wheel; the last stage has only a virtual environment with the pinned
# requirements and that wheel. The broker is PID 1, runs as 10001:10001, handles SIGTERM itself and starts no children
# but the proxy of proxy_port. It needs no capability and writes only to /var/lib/reput, so the root file system can be
# read-only.
#
# `--target spark` makes another image for the jobs of `reput pipeline`, with the extra `spark` and a Java runtime. It
# has no broker configuration; archives are in /archive, and Spark needs a /tmp whose files may be executed.

FROM python:3.11.13-slim-bookworm AS requirements
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/reput

# Requirements and source have separate layers, because the source changes more often.
COPY requirements-build.lock requirements-service.lock ./
RUN /opt/build/bin/pip install --require-hashes --requirement requirements-build.lock \
    && /opt/build/bin/pip --python /opt/reput/bin/python install \
        --require-hashes --only-binary :all: \
        --requirement requirements-service.lock

FROM requirements AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY broker broker
COPY client client
COPY proxy proxy
COPY pipeline pipeline
COPY cli cli
COPY docker-compose.yml ./
COPY conf conf
RUN REPUT_KERNEL=compiled /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels ./client . \
    && /opt/build/bin/pip --python /opt/reput/bin/python install --no-deps --no-index /wheels/*.whl

FROM requirements AS build-spark
# PySpark is published as source only; it has nothing to compile.
COPY requirements-spark.lock ./
RUN /opt/build/bin/pip --python /opt/reput/bin/python install --require-hashes \
        --only-binary :all: --no-binary pyspark --requirement requirements-spark.lock
COPY --from=build /wheels /wheels
RUN /opt/build/bin/pip --python /opt/reput/bin/python install --no-deps --no-index /wheels/*.whl \
    && XDG_CACHE_HOME=/opt /opt/reput/bin/python -c 'from reput_pipeline.spark.java import find_java_home; find_java_home()' \
    && test -x /opt/reput/java/bin/java

FROM python:3.11.13-slim-bookworm AS base
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="reput" \
    org.opencontainers.image.description="A durable, ordered message broker with RocketMQ's architecture and store format" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 reput \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/reput --shell /usr/sbin/nologin reput \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/reput
ENV PATH=/opt/reput/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["reput"]

FROM base AS spark
LABEL org.opencontainers.image.title="reput-spark" \
    org.opencontainers.image.description="The jobs of Reput's pipeline, with Spark and a Java runtime"
USER root
RUN install -d -o 10001 -g 10001 -m 0750 /archive
USER 10001:10001
COPY --from=build-spark /opt/reput /opt/reput
COPY conf/spark-defaults.conf /etc/reput/spark/spark-defaults.conf
ENV JAVA_HOME=/opt/reput/java \
    SPARK_CONF_DIR=/etc/reput/spark
WORKDIR /archive
VOLUME /archive
# As Ctrl-C: a job with --follow stops in order, with exit code 0.
STOPSIGNAL SIGINT
CMD ["pipeline", "--help"]

FROM base
COPY --from=build /opt/reput /opt/reput
COPY conf/container.toml /etc/reput/broker.toml
WORKDIR /var/lib/reput
VOLUME /var/lib/reput
# For the commands in the container: the broker's administrator, and the broker's users.
ENV REPUT_USER=admin \
    REPUT_SECRET_FILE=/var/lib/reput/access/admin.secret \
    REPUT_DATA_DIR=/var/lib/reput
# Clients of every kind, RocketMQ's name service port, HTTP (metrics, health, status), and gRPC clients, if there is a
# proxy.
EXPOSE 10911 9876 10909 10912 10913 8081
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["reput", "health"]
CMD ["serve", "-c", "/etc/reput/broker.toml"]
