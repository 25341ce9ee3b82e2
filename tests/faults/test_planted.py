"""The fault checkers notice planted bugs; `make faults` prints which checker caught which."""

from __future__ import annotations

import secrets

import pytest

from faults.planted import BUGS, Bug, images_until_caught

pytestmark = pytest.mark.fault


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.plant.__name__}-{bug.caught_by.__name__}")
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    seed = secrets.randbelow(1 << 31)
    images, violation = images_until_caught(bug, seed)
    assert violation, f"{bug.plant.__doc__}: {images} images of seed {seed} and nothing was noticed"
