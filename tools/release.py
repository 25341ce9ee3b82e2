"""`python tools/release.py VERSION`: write a new version to every file that names it; `check [VERSION]` compares them.

RELEASING.md has the steps around it. The files are read as text, so that their comments and order stay.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
_IMAGE = r"reput(?:-spark)?:(VERSION)"
PLACES = {
    "pyproject.toml": (r'^version = "(VERSION)"$', r'^    "reput-client==(VERSION)",$'),
    "client/pyproject.toml": (r'^version = "(VERSION)"$',),
    "Dockerfile": (r"^ARG VERSION=(VERSION)$",),
    "docker-compose.yml": (_IMAGE,),
    "conf/kubernetes/reput.yaml": (_IMAGE,),
    "deploy/helm/reput/Chart.yaml": (r"^version: (VERSION)$", r'^appVersion: "(VERSION)"$'),
    "zensical.toml": (r'^copyright = "Reput (VERSION) ',),
    "docs/production.md": (_IMAGE,),
    "docs/security.md": (_IMAGE,),
}
"""By file, what stands there; each pattern matches at least once."""
_VERSION = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"
_UNRELEASED = "## Unreleased\n"


def versions(repository: Path = REPOSITORY) -> dict[str, set[str]]:
    """Return by place, `FILE: PATTERN`, the versions that stand there."""
    found: dict[str, set[str]] = {}
    for name, patterns in PLACES.items():
        text = (repository / name).read_text(encoding="utf-8")
        for pattern in patterns:
            matches = re.findall(pattern.replace("(VERSION)", f"({_VERSION})"), text, re.MULTILINE)
            found[f"{name}: {pattern}"] = set(matches)
    return found


def write(version: str, today: datetime.date, repository: Path = REPOSITORY) -> None:
    """Write a version to all places, and give what the changelog has under "Unreleased" its heading.

    Raises:
        SystemExit: it is no version, or the changelog has nothing to release; nothing was written.
    """
    if re.fullmatch(_VERSION, version) is None:
        raise SystemExit(f"{version!r} is no version: MAJOR.MINOR.PATCH, or with a1, b1 or rc1 after it")
    changelog = repository / "CHANGELOG.md"
    changes = changelog.read_text(encoding="utf-8")
    _, heading, after = changes.partition(_UNRELEASED)
    if not heading or not after.partition("\n## ")[0].strip():
        raise SystemExit('CHANGELOG.md has nothing under "## Unreleased"; write there what changed')
    for name, patterns in PLACES.items():
        path = repository / name
        text = path.read_text(encoding="utf-8")
        for pattern in patterns:
            text = re.sub(
                pattern.replace("(VERSION)", f"({_VERSION})"),
                lambda match: match[0].replace(match[1], version),
                text,
                flags=re.MULTILINE,
            )
        path.write_text(text, encoding="utf-8")
    released = f"{_UNRELEASED}\n## {version} ({today.isoformat()})\n"
    changelog.write_text(changes.replace(_UNRELEASED, released, 1), encoding="utf-8")


def check(version: str | None, repository: Path = REPOSITORY) -> list[str]:
    """Return a line for each place that has another version than the others, or than `version`; none is good."""
    found = versions(repository)
    wanted = version or next(iter(found["pyproject.toml: " + PLACES["pyproject.toml"][0]]), "")
    return [
        f"{place} has {', '.join(sorted(there)) or 'no version'} instead of {wanted}"
        for place, there in found.items()
        if there != {wanted}
    ]


def main() -> int:
    """Write or check; return 0 if all places agree, else 1."""
    parser = argparse.ArgumentParser(description="Write a new version to every file that names it, or compare them.")
    parser.add_argument("version", help="the new version, or `check`")
    parser.add_argument("expected", nargs="?", help="of check: the version that they must have")
    options = parser.parse_args()
    if options.version != "check":
        write(options.version, datetime.datetime.now(tz=datetime.UTC).date())
    faults = check(options.expected if options.version == "check" else options.version)
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
