"""The blocking API equals the async one: methods, parameters, results, docstrings; without an event loop."""

from __future__ import annotations

import inspect
import subprocess
import sys
import traceback
from typing import Any, get_type_hints

import pytest

import reput_client
from reput_client import blocking
from reput_client.blocking.bulk import BulkReader as BlockingBulkReader
from reput_client.blocking.bulk import StagingProducer as BlockingStagingProducer
from reput_client.consume.fetch_records import BulkReader
from reput_client.offset_store import OffsetStore
from reput_client.produce.staging_producer import StagingProducer

PAIRS: list[tuple[type[Any], type[Any]]] = [
    (reput_client.Producer, blocking.Producer),
    (reput_client.TransactionProducer, blocking.TransactionProducer),
    (reput_client.Consumer, blocking.Consumer),
    (reput_client.PullConsumer, blocking.PullConsumer),
    (reput_client.PopConsumer, blocking.PopConsumer),
    (reput_client.PoppedMessage, blocking.PoppedMessage),
    (reput_client.Admin, blocking.Admin),
    (BulkReader, BlockingBulkReader),
    (StagingProducer, BlockingStagingProducer),
    (OffsetStore, blocking.LocalFileOffsetStore),
]
OF_ASYNC_CLIENTS_ONLY = {"aclose"}
OTHER_TYPES = {
    ("Consumer", "run"),
    *(("PopConsumer", name) for name in ("ack", "receive", "run")),
    ("TransactionProducer", "send_in_transaction"),
}
"""They take functions of the application, coroutine functions only in the async API, or messages with methods."""


def public_methods() -> list[Any]:
    return [
        pytest.param(kind, twin, name, id=f"{kind.__name__}.{name}")
        for kind, twin in PAIRS
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_") and name not in OF_ASYNC_CLIENTS_ONLY and callable(member)
    ]


@pytest.mark.parametrize(("kind", "twin", "name"), public_methods())
def test_methods_have_the_signature_and_documentation_of_the_async_ones(
    kind: type[Any], twin: type[Any], name: str
) -> None:
    method, other = getattr(kind, name), getattr(twin, name)
    assert not inspect.iscoroutinefunction(other)
    assert other.__name__ == name
    signature, expected = inspect.signature(other), inspect.signature(method)
    if (kind.__name__, name) in OTHER_TYPES:
        assert list(signature.parameters) == list(expected.parameters)
    else:
        assert signature == expected
        assert get_type_hints(other) == get_type_hints(method)
    first_line = (inspect.getdoc(method) or "no text").splitlines()[0]
    if name != "run":  # handlers run in threads
        assert (inspect.getdoc(other) or "").startswith(first_line)


@pytest.mark.parametrize(("kind", "twin"), PAIRS[:-1])
def test_constructors_take_the_parameters_of_the_async_ones(kind: type[Any], twin: type[Any]) -> None:
    assert list(inspect.signature(twin).parameters) == list(inspect.signature(kind).parameters)
    defaults = {name: p.default for name, p in inspect.signature(twin).parameters.items()}
    assert defaults == {name: p.default for name, p in inspect.signature(kind).parameters.items()}


def test_properties_are_the_same() -> None:
    for kind, twin in PAIRS[:-1]:
        for name, member in inspect.getmembers(kind):
            if isinstance(member, property) and name not in OF_ASYNC_CLIENTS_ONLY:
                assert isinstance(inspect.getattr_static(twin, name), property), f"{twin.__name__}.{name}"


def test_a_wrong_argument_is_an_error_that_names_the_method() -> None:
    producer = blocking.Producer("127.0.0.1:1")
    with pytest.raises(TypeError, match=r"Producer\.send\(\) got an unexpected keyword argument 'akc'"):
        producer.send(reput_client.Message("t", b"x"), akc="flushed")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Producer\.__init__\(\) got an unexpected keyword argument 'grup'"):
        blocking.Producer("127.0.0.1:1", grup="g")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Admin\.__init__\(\) missing a required argument: 'address'"):
        reput_client.Admin()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Message\.__init__\(\) got an unexpected keyword argument 'tags'"):
        reput_client.Message("t", b"x", tags="a")  # type: ignore[call-arg]
    producer.close()


def test_a_traceback_names_the_method_that_was_called() -> None:
    producer = blocking.Producer("127.0.0.1:1")
    producer.close()
    with pytest.raises(reput_client.ClientClosed) as caught:
        producer.send(reput_client.Message("t", b"x"))
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[1] == "send"


def test_importing_it_loads_no_event_loop() -> None:
    program = (
        "import sys, reput_client.blocking, reput_client.blocking.bulk\n"
        "print([name for name in ('trio', 'anyio', 'asyncio', 'sniffio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
