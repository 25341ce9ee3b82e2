"""A little of every kind of fuzzing; `make fuzz` tries a lot. A failure names its seed."""

from __future__ import annotations

import pytest

from fuzz.kinds import KINDS

# One seed, so that the tests say the same every time; `make fuzz` takes another each time.
_SEED = 20261122


@pytest.mark.parametrize("name", KINDS)
def test_no_input_breaks_the_broker(name: str) -> None:
    tried = KINDS[name]
    outcome = tried.kind(_SEED, tried.short)
    assert outcome.cases >= tried.short
    assert not outcome.violations, "\n".join(
        [f"repeat it with: make fuzz KIND={name} CASES={tried.short} SEED={_SEED}", *outcome.violations[:10]]
    )


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("http", "reput_broker.http_server.is_own_host"),
        ("frames", "reput_broker.server.dispatch._may_be_parked"),
    ],
)
def test_a_defect_is_noticed(name: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: object) -> bool:
        raise IndexError("planted")

    monkeypatch.setattr(function, raises)
    outcome = KINDS[name].kind(_SEED, 300)
    assert any("IndexError('planted')" in violation for violation in outcome.violations)
