"""Serializers of values: JSON, Avro and Protobuf, with or without a schema registry.

- `json`, `avro`, `protobuf`: a class each, with `serialize` and `deserialize`
- `registry`: the client of a schema registry, the shared part of values with a schema in one, and their frame
"""
