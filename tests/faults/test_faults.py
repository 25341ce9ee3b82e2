"""Every kind of fault, a little of each; `make soak KIND=faults` tries a lot of each. A failure names its seed.

Each fault checker also notices a planted bug; `make soak KIND=faults PLANTED=1` prints which caught which.
"""

from __future__ import annotations

import os

import pytest

from faults.kinds import KINDS
from faults.planted import BUGS, Bug, images_until_caught
from support.planted_bugs import table_of

pytestmark = pytest.mark.fault

# One seed, so that the tests say the same every time; `make soak KIND=faults` takes another each time, and more.
_SEED = 20261121

# One for each checker: all of them take minutes.
_ONE_EACH = {bug.caught_by: bug for bug in reversed(BUGS.values())}


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_breaks_no_promise(name: str) -> None:
    seed = int(os.environ.get("FAULTS_SEED", _SEED))
    print(f"""{name}: seed {seed}; make soak KIND=faults SEED={seed} ARGS="--kind '{name}'" repeats it""")
    tried = KINDS[name]
    outcome = tried.kind(seed, tried.short)
    assert outcome.images >= tried.short
    assert not outcome.violations, "\n".join([f"seed {seed}", *outcome.violations[:10]])


@pytest.mark.parametrize("bug", _ONE_EACH.values(), ids=lambda bug: f"{bug.name}-{bug.caught_by.__name__}")
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    seed = int(os.environ.get("FAULTS_SEED", _SEED))
    images, violation = images_until_caught(bug, seed)
    assert violation, f"{bug.story}: {images} images of seed {seed} and nothing was noticed"


def test_two_bugs_of_one_name_are_refused() -> None:
    """One of them was never planted."""
    bugs = [*BUGS.values()]
    with pytest.raises(ValueError, match=bugs[0].name):
        table_of([*bugs, bugs[0]])
