"""The list of properties that a broker acts on, and its effect on what clients send."""

from __future__ import annotations

import pytest

from reput_protocol import properties as names
from reput_protocol.errors import InvalidMessage, RecordMalformed
from reput_protocol.kernel.records import properties_have_any
from reput_protocol.property_rules import (
    RULES,
    Form,
    PropertyRule,
    Treatment,
    admit,
    check_property,
    limited_in_batch,
    rule_of,
)
from reput_protocol.record.put_block import check_put_block, encode_block
from reput_protocol.record.record import Record, encode_record

UNCHANGED = (Treatment.KEPT, Treatment.CHECKED)


def name_of(rule: PropertyRule) -> str:
    return f"{rule.name}X" if rule.is_prefix else rule.name


@pytest.fixture(params=RULES, ids=lambda rule: rule.name)
def rule(request: pytest.FixtureRequest) -> PropertyRule:
    found: PropertyRule = request.param
    return found


def test_each_property_has_one_rule(rule: PropertyRule) -> None:
    assert rule_of(name_of(rule)) is rule
    assert [one.name for one in RULES].count(rule.name) == 1


def test_what_names_no_property_of_the_list_is_the_applications() -> None:
    found = {"REPUTATION": "1", "region": "eu", "DELAYED": "x", "POP": "y"}
    assert not any(map(rule_of, found))
    for form in Form:
        kept = dict(found)
        assert admit(kept, form) is None
        assert kept == found


@pytest.mark.parametrize("form", Form)
def test_what_a_client_may_not_set_is_dropped_or_refused(rule: PropertyRule, form: Form) -> None:
    found = {"a": "1", name_of(rule): "7", "z": "2"}
    refused = admit(found, form)
    treatment = rule.treatment(form)
    assert (refused == name_of(rule)) is (treatment in (Treatment.REFUSED, Treatment.REFUSED_IN_RETRIES))
    assert (name_of(rule) not in found) is (treatment is Treatment.DROPPED)
    assert found["a"] + found["z"] == "12"


def test_a_batch_may_say_that_its_messages_are_neither_delayed_nor_half_messages() -> None:
    assert admit({names.DELAY: "0", names.TRAN_MSG: "false"}, Form.BATCH) is None
    assert admit({names.DELAY: "1"}, Form.BATCH) == names.DELAY
    assert admit({names.TRAN_MSG: "true"}, Form.BATCH) == names.TRAN_MSG


@pytest.mark.parametrize("topic", ["orders", "%RETRY%g", "%DLQ%g", "%DLQ%" + "g" * 130])
def test_a_block_with_a_reserved_property_is_refused(rule: PropertyRule, topic: str) -> None:
    if rule.name == names.CRC32:
        return
    block, _ = encode_block([b"x"], [f"a\x01b\x02{name_of(rule)}\x017\x02".encode()], topic, 0, 1)
    reserved = rule.block is Treatment.REFUSED or (rule.block is Treatment.REFUSED_IN_RETRIES and topic != "orders")
    if not reserved:
        assert check_put_block(block, topic=topic, queue_id=0, count=1).count == 1
        return
    with pytest.raises(RecordMalformed, match=f"'{name_of(rule)}' is reserved for the broker"):
        check_put_block(block, topic=topic, queue_id=0, count=1)


def test_callers_cannot_set_what_a_block_may_not_have(rule: PropertyRule) -> None:
    if rule.block is not Treatment.REFUSED:
        return
    with pytest.raises(InvalidMessage, match=r"reserved|its own argument"):
        check_property(name_of(rule), "7")


@pytest.mark.parametrize("position", range(3))
def test_a_batch_with_a_limited_property_is_found(rule: PropertyRule, position: int) -> None:
    units = [b"a\x01b\x02", b"TAGS\x01POP_CK\x02", b"x\x01DELAY\x02"]
    units.insert(position, f"{name_of(rule)}\x017\x02".encode())
    data = encode_record(Record("t", b"body", properties=b"".join(units)))
    found = properties_have_any(data, limited_in_batch())
    assert found is (rule.batch not in UNCHANGED)
