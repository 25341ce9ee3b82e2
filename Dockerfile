# Two stages: the first turns the pinned requirements and this source into one virtual environment, the second
# holds nothing but that environment. The broker is PID 1, runs as 10001:10001, handles SIGTERM itself and starts
# no children; it needs no capability and writes only to /var/lib/reput, so a read-only root file system is fine.

FROM python:3.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/reput

# The requirements change seldom, the source often: each has its own layer.
COPY requirements-build.lock requirements-runtime.lock ./
RUN /opt/build/bin/pip install --require-hashes --requirement requirements-build.lock \
    && /opt/build/bin/pip --python /opt/reput/bin/python install \
        --require-hashes --only-binary :all: --requirement requirements-runtime.lock

COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY broker broker
COPY client client
COPY pipeline pipeline
COPY cli cli
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/build/bin/pip --python /opt/reput/bin/python install --no-deps --no-index /wheels/*.whl

FROM python:3.11-slim-bookworm
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
COPY --from=build /opt/reput /opt/reput
COPY conf/container.toml /etc/reput/broker.toml
# A broker behind a published port cannot know the address that clients dial: REPUT_ADVERTISE says it.
ENV PATH=/opt/reput/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    REPUT_ADVERTISE=127.0.0.1:10911
USER 10001:10001
WORKDIR /var/lib/reput
VOLUME /var/lib/reput
# Clients of every kind, RocketMQ's name service port, and HTTP: metrics, health, status.
EXPOSE 10911 9876 10913
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["reput", "health"]
ENTRYPOINT ["reput"]
CMD ["serve", "-c", "/etc/reput/broker.toml"]
