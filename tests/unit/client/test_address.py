"""Addresses in all accepted forms."""

from __future__ import annotations

import pytest

from reput_client.transport.address import Address, parse_address, parse_addresses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:10911", Address("127.0.0.1", 10911)),
        ("broker", Address("broker", 10911)),
        ("[::1]:7", Address("::1", 7)),
        ("[::1]", Address("::1", 10911)),
        ("::1", Address("::1", 10911)),
        (" a:1 ", Address("a", 1)),
    ],
)
def test_forms(text: str, expected: Address) -> None:
    assert parse_address(text) == expected
    assert parse_address(str(expected)) == expected


@pytest.mark.parametrize("text", ["", ":1", "a:0", "a:65536", "a:b", "a:-1", "a:\uff11"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        parse_address(text)


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1:23911", "redis://127.0.0.1:23911/0", "amqp://guest:guest@127.0.0.1:23911/%2f"]
)
def test_the_error_for_a_url_names_its_host_and_port(text: str) -> None:
    with pytest.raises(ValueError, match=r"write only its host and port: 127\.0\.0\.1:23911$"):
        parse_address(text)


def test_a_port_is_not_an_address() -> None:
    with pytest.raises(TypeError, match="a broker's address is a str, not int; pass host:port"):
        parse_addresses(10911)  # type: ignore[arg-type]


def test_several_addresses_lose_their_duplicates_and_keep_their_order() -> None:
    assert parse_addresses("b:2,a:1; b:2") == (Address("b", 2), Address("a", 1))
    assert parse_addresses(["b:2", "a:1"]) == (Address("b", 2), Address("a", 1))
    with pytest.raises(ValueError, match="no broker address"):
        parse_addresses(" , ")
