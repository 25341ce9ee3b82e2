"""RocketMQ's filter library in its own process; see apache/src/main/java/reput/conformance/Filters.java."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from conformance.apache import JVM_OPTIONS, ApacheError, classpath

Outcome = str | list[bool | str | None]

_TIMEOUT_S = 600


def outcomes(cases: Iterable[tuple[str, Sequence[Mapping[str, str]]]]) -> list[Outcome]:
    """What RocketMQ says of each expression and its messages: as `filters.ours.outcome`.

    Raises:
        ApacheError: the library ended before it was through.
    """
    lines = [json.dumps({"expression": text, "messages": messages}) for text, messages in cases]
    command = ["java", *JVM_OPTIONS, "-cp", classpath(), "reput.conformance.Filters"]
    result = subprocess.run(command, input="\n".join(lines), capture_output=True, encoding="utf-8", timeout=_TIMEOUT_S)
    if result.returncode:
        raise ApacheError(f"the filter library ended with {result.returncode}\n{result.stderr[-2000:]}")
    answers = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(lines)
    return ["refused" if "refused" in answer else answer["values"] for answer in answers]
