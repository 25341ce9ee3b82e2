"""A little of every kind of fuzzing; `make soak KIND=fuzz` tries a lot. A failure names its seed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.kinds import KINDS
from reput_protocol import kernel
from support.waiting import wait_until

# One seed, so that the tests say the same every time; `make soak KIND=fuzz` takes another each time.
_SEED = 20261122


@pytest.mark.parametrize("name", KINDS)
def test_no_input_breaks_the_broker(name: str) -> None:
    tried = KINDS[name]
    outcome = tried.kind(_SEED, tried.short)
    assert outcome.cases >= tried.short
    assert not outcome.violations, "\n".join(
        [
            f"repeat it with: make soak KIND=fuzz CASES={round(tried.short / tried.share)} SEED={_SEED}"
            f" ARGS='--kind {name}'",
            *outcome.violations[:10],
        ]
    )


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("http", "reput_broker.server.http_server.is_own_host"),
        ("frames", "reput_broker.server.handling.why_not_served"),
        ("grpc", "reput_proxy.routes.accepted_types"),
    ],
)
def test_a_defect_is_noticed(name: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: object) -> bool:
        raise IndexError("planted")

    monkeypatch.setattr(function, raises)
    outcome = KINDS[name].kind(_SEED, 300)
    assert any("IndexError('planted')" in violation for violation in outcome.violations)


def test_a_signature_that_is_not_checked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reput_broker.access.control.hmac.compare_digest", lambda *_: True)
    outcome = KINDS["json-signed"].kind(_SEED, 100)
    assert any("access control lets" in violation for violation in outcome.violations)


@pytest.mark.parametrize("left_out", ["hmac.compare_digest", "SignatureChecker._take"])
def test_a_signature_in_reputs_form_that_is_not_checked_is_noticed(
    left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"reput_protocol.wire.signature.{left_out}", lambda *_: True)
    outcome = KINDS["msgpack-signed-in-reputs-form"].kind(_SEED, 400)
    assert any("access control lets" in violation for violation in outcome.violations)


@pytest.mark.skipif(kernel.FORM == "interpreted", reason="the kernel is not compiled")
def test_damaged_records_are_the_same_to_the_compiled_and_the_interpreted_kernel() -> None:
    command = [
        sys.executable,
        str(Path(__file__).parents[1] / "fuzz_kernel" / "run.py"),
        "--library",
        str(Path(kernel.__file__).parent),
    ]
    command += ["--cases", "20000", "--compared", "100", "--seed", str(_SEED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@pytest.mark.process
@pytest.mark.parametrize("kind", ["frames", "grpc"])
def test_sigterm_leaves_no_process_and_no_file(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--kind", kind, "--jobs", "1"]
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(tmp_path)}, start_new_session=True
        )
    said = (tmp_path / "log").read_text
    try:
        wait_until(lambda: [*tmp_path.glob("reput-fuzz-*/data/checkpoint")], what=said)
        run.terminate()
        assert run.wait(60) == 1, said()
        wait_until(lambda: not _of_session(run.pid), what=said)
        assert [*tmp_path.glob("reput-fuzz-*")] == []
    finally:
        for pid in _of_session(run.pid):
            os.kill(pid, signal.SIGKILL)
        run.wait(60)


def _of_session(session: int) -> list[int]:
    """Return the processes of a session, without those that have ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its, *_ = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its) == session and state != "Z":
            found.append(int(path.parent.name))
    return found
