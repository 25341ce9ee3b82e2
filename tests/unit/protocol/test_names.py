"""Which names are legal, and the refusal of others."""

from __future__ import annotations

import pytest

from reput_protocol.errors import InvalidName
from reput_protocol.names import (
    FORBIDDEN_SEND_TOPICS,
    check_client_group,
    check_group,
    check_send_topic,
    check_topic,
    dlq_topic,
    is_system_group,
    is_system_topic,
    retry_topic,
)


@pytest.mark.parametrize("topic", ["a", "TopicTest", "%RETRY%g", "a|b-c_9", "x" * 127, "%DLQ%" + "g" * 250])
def test_legal_topics_come_back(topic: str) -> None:
    assert check_topic(topic) == topic


@pytest.mark.parametrize(
    ("topic", "part"),
    [
        ("", "empty topic name"),
        ("a b", "' ' at position 1"),
        ("é", "at position 0"),
        ("a/../b", "'/' at position 1"),
        ("a\n", "at position 1"),
        ("orders.eu:paid", "'.' at position 6; .*: 'orders-eu-paid', for example"),
        ("x" * 128, "128 characters, but at most 127"),
        ("%RETRY%" + "g" * 249, "at most 255"),
    ],
)
def test_illegal_topics_are_refused_with_the_rule(topic: str, part: str) -> None:
    with pytest.raises(InvalidName, match=part):
        check_topic(topic)


def test_a_topic_that_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidName, match="not bytes"):
        check_topic(b"orders")  # type: ignore[arg-type]


def test_clients_cannot_send_to_the_brokers_own_topics() -> None:
    for topic in FORBIDDEN_SEND_TOPICS:
        with pytest.raises(InvalidName, match="belongs to the broker"):
            check_send_topic(topic)
    assert check_send_topic("%RETRY%g") == "%RETRY%g"


def test_groups() -> None:
    assert check_group("g" * 120)
    with pytest.raises(InvalidName, match="121 characters"):
        check_group("g" * 121)
    with pytest.raises(InvalidName, match="empty group"):
        check_group("")
    with pytest.raises(InvalidName, match="not int"):
        check_group(7)  # type: ignore[arg-type]
    assert check_client_group("billing") == "billing"
    with pytest.raises(InvalidName, match="reserved"):
        check_client_group("DEFAULT_CONSUMER")


def test_system_names() -> None:
    assert is_system_topic("TBW102")
    assert is_system_topic("rmq_sys_anything")
    assert not is_system_topic("%RETRY%g")
    assert is_system_group("TOOLS_CONSUMER")
    assert not is_system_group("billing")
    assert (retry_topic("g"), dlq_topic("g")) == ("%RETRY%g", "%DLQ%g")
