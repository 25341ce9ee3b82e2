"""Every error of the client is in one module, and exported by the package."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

import reput_client
from reput_client import errors
from reput_protocol import errors as shared
from reput_protocol.codes import AckLevel
from reput_protocol.errors import BrokerError, ErrorCode, InvalidMessage, ReputError
from reput_protocol.record.message import Message


def test_every_error_of_the_client_is_public() -> None:
    for module in pkgutil.walk_packages(reput_client.__path__, "reput_client."):
        if not module.name.startswith("reput_client.tasks.django."):  # it needs the settings of a project
            import_module(module.name)
    own = {kind for kind in _descendants(ReputError) if kind.__module__.startswith("reput_client.")}
    refusals = {*_descendants(BrokerError), BrokerError}
    assert own | refusals <= {getattr(errors, name) for name in errors.__all__}
    assert {kind.__module__ for kind in own} == {"reput_client.errors"}


def test_there_is_one_of_each() -> None:
    for name in errors.__all__:
        assert getattr(reput_client, name) is getattr(errors, name)
        assert getattr(shared, name, getattr(errors, name)) is getattr(errors, name)
    assert set(errors.__all__) <= set(dir(reput_client))


def test_the_package_imports_nothing_until_it_is_used() -> None:
    program = "import sys, reput_client; print(sorted(m for m in sys.modules if m.startswith('reput_')))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "['reput_client', 'reput_client.exported']"


def test_a_mistyped_ack_level_names_the_choices() -> None:
    with pytest.raises(ValueError, match="ack is 'page_cache', 'flushed' or 'replicated', not 'fush'"):
        AckLevel("fush")


def test_temporary_refusals_may_be_repeated() -> None:
    assert ErrorCode.DISK_FULL.retryable
    assert not ErrorCode.READ_ONLY.retryable


@pytest.mark.parametrize(
    ("tag", "reason"),
    [("a ||", "joins tags"), ("a||b", "joins tags"), (" ", "blank"), ("a ", "blank"), (" a", "blank")],
)
def test_a_tag_that_no_subscription_can_name(tag: str, reason: str) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        Message("orders", b"", tag=tag)
    assert Message("orders", b"", tag="a b|c").tag == "a b|c"


def _descendants(kind: type[ReputError]) -> set[type[ReputError]]:
    return {kind for child in kind.__subclasses__() for kind in (child, *_descendants(child))}
