"""Every kind of fault, a little of each; `make faults` tries a lot of each. A failure names its seed."""

from __future__ import annotations

import secrets

import pytest

from faults.kinds import KINDS

pytestmark = pytest.mark.fault


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_breaks_no_promise(name: str) -> None:
    seed = secrets.randbelow(1 << 31)
    print(f"{name}: seed {seed}; repeat it with: make faults KIND='{name}' SEED={seed}")
    tried = KINDS[name]
    outcome = tried.kind(seed, tried.short)
    assert outcome.images >= tried.short
    assert not outcome.violations, "\n".join([f"seed {seed}", *outcome.violations[:10]])
