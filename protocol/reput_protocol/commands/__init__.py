"""Typed headers and JSON bodies of requests and answers, by family; see docs/protocol.md."""
