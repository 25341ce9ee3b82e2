"""A FastStream broker for Reput (docs/frameworks.md): the extra `faststream`. FastStream runs on asyncio."""

from importlib.util import find_spec

if find_spec("faststream") is None:
    raise ImportError("FastStream is not installed; install the extra faststream of reput-client")

from reput_client.faststream.broker import ReputBroker, ReputRouter
from reput_client.faststream.messages import ReputMessage, ReputResponse
from reput_client.faststream.testing import TestReputBroker

__all__ = ["ReputBroker", "ReputMessage", "ReputResponse", "ReputRouter", "TestReputBroker"]
