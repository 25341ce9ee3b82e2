"""Every kind of fault, a little of each; `make soak KIND=faults` tries a lot of each. A failure names its seed."""

from __future__ import annotations

import os

import pytest

from faults.kinds import KINDS

pytestmark = pytest.mark.fault

# One seed, so that the tests say the same every time; `make soak KIND=faults` takes another each time, and more.
_SEED = 20261121


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_breaks_no_promise(name: str) -> None:
    seed = int(os.environ.get("FAULTS_SEED", _SEED))
    print(f"""{name}: seed {seed}; make soak KIND=faults SEED={seed} ARGS="--kind '{name}'" repeats it""")
    tried = KINDS[name]
    outcome = tried.kind(seed, tried.short)
    assert outcome.images >= tried.short
    assert not outcome.violations, "\n".join([f"seed {seed}", *outcome.violations[:10]])
