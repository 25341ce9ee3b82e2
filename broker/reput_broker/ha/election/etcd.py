"""The group's record in etcd, through its JSON gateway (`/v3`, etcd 3.4 and later).

Two keys under `/reput/CLUSTER/BROKER_NAME/`, each a JSON object: `group` has the epoch, the in-sync set and the
successor; `master` has the leader and is bound to its lease, so etcd deletes it when the lease ends. A transaction
changes both, and compares their revisions with those that were seen.
"""

from __future__ import annotations

import json
import math
import ssl
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from typing_extensions import override

from reput_broker.ha.election.endpoints import Answer, Endpoints
from reput_broker.ha.election.engine import (
    REQUESTS_PER_LEASE,
    Engine,
    EngineUnavailable,
    GroupRecord,
    LeaseLost,
    group_of,
    group_text,
    leader_of,
    leader_text,
)

_UNAUTHENTICATED: Final = 401
_NOT_FOUND: Final = 404


class EtcdEngine(Engine):
    """See `Engine`.

    Args:
        addresses: URLs of etcd's client ports; any one that is part of a majority is enough.
        lease_s: the length of the lease; etcd counts whole seconds.
        user, password: of etcd's authentication; empty without it.
        tls: for `https`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        cluster: str,
        broker_name: str,
        lease_s: float,
        user: str = "",
        password: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._endpoints = Endpoints(addresses, timeout_s=lease_s / REQUESTS_PER_LEASE, tls=tls)
        self._prefix = f"/reput/{cluster}/{broker_name}/"
        self._ttl = math.ceil(lease_s)
        self._user, self._password = user, password
        self._token: str | None = None
        self._lease: str | None = None

    @property
    def name(self) -> str:
        """The engine and where it is, for the log."""
        return f"etcd at {self._endpoints}"

    @override
    async def read(self) -> GroupRecord:
        answer = await self._call("/v3/kv/range", self._all_keys())
        return self._record(answer)[0]

    @override
    async def take(self, seen: GroupRecord, new: GroupRecord) -> GroupRecord | None:
        granted = await self._call("/v3/lease/grant", {"TTL": self._ttl})
        lease = str(granted.get("ID", ""))
        if not lease:
            raise EngineUnavailable(f"{self.name}: the response to a lease has no ID, but {granted}")
        record = await self._replace(seen, new, lease, [])
        if record is not None:
            self._lease = lease
        return record

    @override
    async def keep_alive(self) -> None:
        assert self._lease is not None, "the lease is taken first"
        answer = await self._call("/v3/lease/keepalive", {"ID": self._lease})
        if int(answer.get("result", {}).get("TTL", 0)) <= 0:
            raise LeaseLost(f"etcd has ended lease {int(self._lease):x}")

    @override
    async def write(self, seen: GroupRecord, new: GroupRecord) -> GroupRecord | None:
        lease = self._lease
        assert lease is not None, "the lease is taken first"
        bound = {"target": "LEASE", "result": "EQUAL", "key": self._key("master"), "lease": lease}
        record = await self._replace(seen, new, lease, [bound])
        if record is not None and record.leader is None:
            self._lease = None
            with suppress(EngineUnavailable):  # it ends by itself, and nothing is bound to it
                await self._call("/v3/lease/revoke", {"ID": lease}, absent_is_fine=True)
        return record

    @override
    async def changed(self, seen: GroupRecord) -> None:
        watch = {**self._all_keys(), "start_revision": int(seen.revision[-1]) + 1 if seen.revision else 0}
        await self._endpoints.watch(
            "POST", "/v3/watch", {"create_request": watch}, headers=self._headers(), is_enough=_is_change
        )

    @override
    async def close(self) -> None:
        await self._endpoints.close()

    async def _replace(
        self, seen: GroupRecord, new: GroupRecord, lease: str, compare: list[dict[str, Any]]
    ) -> GroupRecord | None:
        group_revision, master_revision, _ = seen.revision or ("0", "0", "0")
        group = {"key": self._key("group"), "value": _encode(group_text(new))}
        changes: list[dict[str, Any]] = [{"request_put": group}]
        if new.leader is None:
            changes.append({"request_delete_range": {"key": self._key("master")}})
        elif not compare:
            leader = {"key": self._key("master"), "value": _encode(leader_text(new)), "lease": lease}
            changes.append({"request_put": leader})
        answer = await self._call(
            "/v3/kv/txn",
            {
                "compare": [
                    _unchanged(self._key("group"), group_revision),
                    _unchanged(self._key("master"), master_revision),
                    *compare,
                ],
                "success": [*changes, {"request_range": self._all_keys()}],
                "failure": [{"request_range": self._all_keys()}],
            },
        )
        responses = answer.get("responses") or [{}]
        if "response_range" not in responses[-1]:
            raise EngineUnavailable(f"{self.name}: the response to a transaction has no keys, but {answer}")
        record, bound_to = self._record(responses[-1]["response_range"], answer)
        if answer.get("succeeded"):
            return record
        # An attempt that got no answer may have succeeded, and the next one then finds its own change.
        return record if record == new and bound_to == (lease if new.leader else None) else None

    def _record(self, found: dict[str, Any], answer: dict[str, Any] | None = None) -> tuple[GroupRecord, str | None]:
        """Return the record in the answer to a range request, and the lease of its leader."""
        kept = {b64decode(entry["key"]).decode(): entry for entry in found.get("kvs", [])}
        group, master = kept.get(self._prefix + "group", {}), kept.get(self._prefix + "master", {})
        header = (found if answer is None else answer).get("header", {})
        try:
            record = group_of(
                json.loads(b64decode(group["value"])) if group else {},
                leader=leader_of(json.loads(b64decode(master["value"]))) if master else None,
                revision=(
                    str(group.get("mod_revision", 0)),
                    str(master.get("mod_revision", 0)),
                    str(header.get("revision", 0)),
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EngineUnavailable(
                f"{self.name}: the keys under {self._prefix} are not a group's ({error!r}); another program writes them"
            ) from None
        return record, master.get("lease")

    async def _call(self, path: str, body: dict[str, Any], *, absent_is_fine: bool = False) -> dict[str, Any]:
        answer = await self._endpoints.call("POST", path, body, headers=self._headers())
        if self._user and _is_without_token(answer):
            await self._authenticate()
            answer = await self._endpoints.call("POST", path, body, headers=self._headers())
        # The answer to a request that is a stream begins with 200, whatever follows.
        if (answer.status == 200 and "error" not in answer.body) or (absent_is_fine and answer.status == _NOT_FOUND):
            return answer.body
        raise EngineUnavailable(f"{self.name}: {path} was rejected with {answer.text}")

    async def _authenticate(self) -> None:
        answer = await self._endpoints.call(
            "POST", "/v3/auth/authenticate", {"name": self._user, "password": self._password}
        )
        if answer.status != 200 or "token" not in answer.body:
            raise EngineUnavailable(f"{self.name}: user {self._user!r} was rejected with {answer.text}")
        self._token = str(answer.body["token"])

    def _headers(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": self._token}

    def _key(self, name: str) -> str:
        return _encode(self._prefix + name)

    def _all_keys(self) -> dict[str, Any]:
        return {"key": _encode(self._prefix), "range_end": _encode(self._prefix[:-1] + "0")}  # "0" follows "/"


def _encode(text: str) -> str:
    return b64encode(text.encode()).decode()


def _unchanged(key: str, revision: str) -> dict[str, Any]:
    """A condition on the revision at which a key was changed last; 0 means that it does not exist."""
    return {"target": "MOD", "result": "EQUAL", "key": key, "mod_revision": revision}


def _is_change(line: dict[str, Any]) -> bool:
    """Tell whether a line of a watch reports a change, or that nothing more is reported."""
    result = line.get("result", {})
    return "error" in line or bool(result.get("canceled") or result.get("events"))


def _is_without_token(answer: Answer) -> bool:
    return answer.status == _UNAUTHENTICATED or (answer.status == 400 and "user name is empty" in answer.text)
