"""Addresses in records: text and bytes, IPv4 and IPv6."""

import pytest

from reput_protocol.record.message_id import ZERO_HOST, Host, born_host_bytes


@pytest.mark.parametrize("text", ["10.0.0.1:10911", "[::1]:1", "0.0.0.0:0"])
def test_text_round_trip(text: str) -> None:
    host = Host.parse(text)
    assert str(host) == text
    assert Host.unpack(host.packed()) == host


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.1:", "10.0.0.1:x", "localhost:1", "10.0.0.1:65536"])
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Host.parse(text)


def test_packed_widths() -> None:
    assert ZERO_HOST.packed() == bytes(8)
    assert len(Host("::1", 1).packed()) == 20
    with pytest.raises(ValueError, match="8 or 20"):
        Host.unpack(bytes(9))
    with pytest.raises(ValueError, match="32 bits"):
        Host("10.0.0.1", 1 << 31).packed()


@pytest.mark.parametrize(
    ("ip", "stored"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "0.0.0.0"),
        ("fe80::1%eth0", "0.0.0.0"),
    ],
)
def test_born_hosts_are_stored_in_eight_bytes(ip: str, stored: str) -> None:
    assert Host.unpack(born_host_bytes(ip, 40000)) == Host(stored, 40000)
