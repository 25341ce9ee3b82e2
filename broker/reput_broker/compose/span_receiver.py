"""Making the exporter of spans for the receiver that the configuration names."""

from __future__ import annotations

from reput_broker.config.errors import ConfigError, ConfigProblem
from reput_broker.config.model import BrokerConfig
from reput_broker.observe.metrics import broker_version
from reput_broker.observe.span_exporter import SpanExporter


def make_span_exporter(config: BrokerConfig) -> SpanExporter:
    """Return a started exporter to `tracing.endpoint`. Blocks: it imports OpenTelemetry.

    Raises:
        ConfigError: OpenTelemetry's exporter is not installed.
    """
    resource = {
        "service.name": "reput",
        "service.namespace": config.cluster,
        "service.instance.id": f"{config.broker_name}/{config.broker_id}",
        "service.version": broker_version(),
    }
    try:
        exporter = SpanExporter(config.tracing.endpoint, resource)
    except ModuleNotFoundError as missing:
        if not str(missing.name).startswith("opentelemetry"):
            raise
        text = (
            "needs OpenTelemetry's exporter, which is not installed (the extra `otel` of reput brings it): "
            "pip install opentelemetry-exporter-otlp-proto-http"
        )
        key = "tracing.endpoint"
        raise ConfigError([ConfigProblem(key, config.origins.get(key, "code"), text)]) from missing
    exporter.start()
    return exporter
