"""Values of messages in DataFrames: JSON, Avro and Protobuf to columns (`decode_values`) and back (`encode_values`)."""

from reput_pipeline.typed.values import decode_values, encode_values

__all__ = ["decode_values", "encode_values"]
