"""RocketMQ 5's gRPC service in front of brokers: `reput proxy` (docs/compatibility.md, gRPC clients)."""
