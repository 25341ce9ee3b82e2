"""Compares the commit logs of brokers that have ended: what two of them have at the same offset must be the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path


def differences(stores: Sequence[Path]) -> Iterator[str]:
    """Name, for each two stores, the first offset at which their logs differ, and what there was to compare."""
    logs = {store: _files(store) for store in stores}
    for one, other in combinations(stores, 2):
        common = sorted(set(logs[one]) & set(logs[other]))
        if not common:
            yield f"{one.parent.name} and {other.parent.name} have no file of the log in common"
        for begin in common:
            at = _first_difference(logs[one][begin], logs[other][begin])
            if at is not None:
                yield f"{one.parent.name} and {other.parent.name} differ at offset {begin + at}"
                break


def _files(store: Path) -> dict[int, Path]:
    return {int(path.name): path for path in (store / "commitlog").iterdir() if path.name.isdigit()}


def _first_difference(one: Path, other: Path) -> int | None:
    """Return where two files differ before the end of the shorter one; zeros at the end are not written yet."""
    first, second = one.read_bytes(), other.read_bytes()
    end = min(len(first.rstrip(b"\0")), len(second.rstrip(b"\0")))
    if first[:end] == second[:end]:
        return None
    return next(at for at in range(end) if first[at] != second[at])
