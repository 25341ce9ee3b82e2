"""The group's record in a Lease of Kubernetes (coordination.k8s.io/v1).

The Lease has the record as an annotation, and the holder's name and time in its spec, as other users of Leases have
them. The API server changes the object only if its resourceVersion is still the one that was seen.

The API server does not end a lease. A member considers the master's lease ended once it has seen no change of the
object for the time that the object names, by its own clock; the clocks of two machines are not compared.
"""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import trio
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

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token and the certificate of the API server."""

_ANNOTATION_GROUP: Final = "reput/group"
_ANNOTATION_STATE: Final = "reput/state"
_ANNOTATION_LEADER: Final = "reput/leader"
_NAME_MAX: Final = 253
_OK, _CREATED, _NOT_FOUND, _CONFLICT = 200, 201, 404, 409


class KubernetesEngine(Engine):
    """See `Engine`.

    Args:
        namespace: of the Lease.
        lease_s: the length of the lease; Kubernetes counts whole seconds.
        clock: seconds of a clock that never jumps.
        address: URL of the API server; None takes that of the cluster that this pod runs in.
        service_account: directory with `token` and `ca.crt`. Kubernetes replaces the token from time to time.

    Raises:
        EngineUnavailable: there is no `address`, and this process does not run in a pod.
    """

    def __init__(
        self,
        namespace: str,
        *,
        cluster: str,
        broker_name: str,
        lease_s: float,
        clock: Callable[[], float],
        address: str | None = None,
        service_account: Path = SERVICE_ACCOUNT,
    ) -> None:
        address = address or _address_of_cluster()
        self._token = service_account / "token"
        tls = None
        if address.startswith("https:"):
            tls = ssl.create_default_context(cafile=str(service_account / "ca.crt"))
        self._endpoints = Endpoints([address], timeout_s=lease_s / REQUESTS_PER_LEASE, tls=tls)
        self._group = f"{cluster}/{broker_name}"
        self._name = re.sub(r"[^a-z0-9-]+", "-", f"reput-{cluster}-{broker_name}".lower())[:_NAME_MAX].strip("-")
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace = namespace
        self._duration_s = int(-(-lease_s // 1))
        self._clock = clock
        self._holder = token_hex(8)
        self._observed: tuple[str, float] = ("", 0.0)
        self._lasts_s = lease_s
        self._object: dict[str, Any] | None = None
        self._changing = trio.Lock()

    @property
    def name(self) -> str:
        """The engine and where it is, for the log."""
        return f"Lease {self._namespace}/{self._name} of Kubernetes at {self._endpoints}"

    @override
    async def read(self) -> GroupRecord:
        found = await self._get()
        return GroupRecord() if found is None else self._record(found)

    @override
    async def take(self, seen: GroupRecord, new: GroupRecord) -> GroupRecord | None:
        assert new.leader is not None, "a leader takes"
        holder = f"{new.leader.member}/{token_hex(8)}"
        async with self._changing:
            kept = await self._put(self._new_object(new, holder), version="".join(seen.revision))
            if kept is None:
                # An attempt that got no answer may have succeeded, and the next one then finds its own change.
                kept = await self._get()
                if kept is None or _holder(kept) != holder:
                    return None
            self._holder, self._object = holder, kept
            return self._record(kept)

    @override
    async def keep_alive(self) -> None:
        async with self._changing:
            for _ in range(2):
                lease = self._held()
                lease["spec"]["renewTime"] = _now()
                if await self._replace(lease):
                    return
                await self._refresh()
        raise EngineUnavailable(f"{self.name}: another program changes the object all the time")

    @override
    async def write(self, seen: GroupRecord, new: GroupRecord) -> GroupRecord | None:
        async with self._changing:
            for _ in range(2):
                lease = self._held()
                if self._record(lease) == seen:
                    self._fill(lease, new, self._holder)
                    if await self._replace(lease):
                        kept = self._held()
                        if new.leader is None:
                            self._object = None
                        return self._record(kept)
                try:
                    await self._refresh()
                except LeaseLost:
                    return None
                found = self._record(self._held())
                if found == new:
                    return found  # an attempt that got no answer had succeeded
                if found != seen:
                    return None
        return None

    @override
    async def changed(self, seen: GroupRecord) -> None:
        query = f"?watch=true&fieldSelector=metadata.name%3D{self._name}&resourceVersion={''.join(seen.revision)}"

        def is_change(event: dict[str, Any]) -> bool:
            if event.get("type") not in ("ADDED", "MODIFIED"):
                return True
            try:
                is_same = self._record(event["object"]) == seen
            except EngineUnavailable:
                return True  # reading says why
            if seen.leader is not None:
                scope.deadline = trio.current_time() + self._time_left()
            return not is_same

        with trio.move_on_after(self._time_left() if seen.leader is not None else inf) as scope:
            await self._endpoints.watch("GET", self._leases + query, headers=self._headers(), is_enough=is_change)

    @override
    async def close(self) -> None:
        await self._endpoints.close()

    def _held(self) -> dict[str, Any]:
        """Return a copy of the object as this member wrote it last."""
        if self._object is None:
            raise LeaseLost(f"this member does not hold {self.name}")
        held: dict[str, Any] = json.loads(json.dumps(self._object))
        return held

    async def _replace(self, lease: dict[str, Any]) -> bool:
        kept = await self._put(lease, version=None)
        if kept is not None:
            self._object = kept
        return kept is not None

    async def _refresh(self) -> None:
        """Read the object again, which another program has changed, or an earlier attempt of this one."""
        found = await self._get()
        if found is None or _holder(found) != self._holder:
            self._object = None
            raise LeaseLost(f"{self.name} is held by {'no member' if found is None else _holder(found)!r}")
        self._object = found

    async def _get(self) -> dict[str, Any] | None:
        answer = await self._endpoints.call("GET", f"{self._leases}/{self._name}", headers=self._headers())
        if answer.status == _NOT_FOUND:
            return None
        if answer.status != _OK:
            raise self._refused("reading", answer)
        return answer.body

    async def _put(self, lease: dict[str, Any], *, version: str | None) -> dict[str, Any] | None:
        """Create or replace the object; None if its version is another one.

        Args:
            version: of the object that is replaced; empty to create it, None for the one in `lease`.
        """
        method, path = "PUT", f"{self._leases}/{self._name}"
        if version:
            lease["metadata"]["resourceVersion"] = version
        elif version is not None:
            method, path = "POST", self._leases
        answer = await self._endpoints.call(method, path, lease, headers=self._headers())
        if answer.status in (_CONFLICT, _NOT_FOUND):
            return None
        if answer.status not in (_OK, _CREATED):
            raise self._refused("writing", answer)
        return answer.body

    def _refused(self, what: str, answer: Answer) -> EngineUnavailable:
        return EngineUnavailable(
            f"{self.name}: {what} was rejected with {answer.text}; the pod's service account needs "
            "get, watch, create and update on leases of coordination.k8s.io"
        )

    def _record(self, lease: dict[str, Any]) -> GroupRecord:
        """Return the record in an object, and note when the object was first seen like this."""
        try:
            version = str(lease["metadata"]["resourceVersion"])
            if version != self._observed[0]:
                self._observed = (version, self._clock())
            notes = lease["metadata"]["annotations"]
            if notes[_ANNOTATION_GROUP] != self._group:
                raise ValueError(f"it belongs to group {notes[_ANNOTATION_GROUP]}")
            self._lasts_s = float(lease["spec"]["leaseDurationSeconds"])
            holder = _holder(lease)
            is_held = holder == self._holder or (bool(holder) and self._time_left() > 0)
            return group_of(
                json.loads(notes[_ANNOTATION_STATE]),
                leader=leader_of(json.loads(notes[_ANNOTATION_LEADER])) if is_held else None,
                revision=(version,),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EngineUnavailable(
                f"{self.name} is not this group's ({error!r}); give one of them another name"
            ) from None

    def _time_left(self) -> float:
        return max(0.0, self._observed[1] + self._lasts_s - self._clock())

    def _new_object(self, record: GroupRecord, holder: str) -> dict[str, Any]:
        lease: dict[str, Any] = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {"acquireTime": _now()},
        }
        self._fill(lease, record, holder)
        return lease

    def _fill(self, lease: dict[str, Any], record: GroupRecord, holder: str) -> None:
        notes = lease["metadata"].setdefault("annotations", {})
        notes |= {_ANNOTATION_GROUP: self._group, _ANNOTATION_STATE: group_text(record)}
        if record.leader is not None:
            notes[_ANNOTATION_LEADER] = leader_text(record)
        lease["spec"] |= {
            "holderIdentity": holder if record.leader is not None else "",
            "leaseDurationSeconds": self._duration_s,
            "leaseTransitions": record.epoch,
            "renewTime": _now(),
        }

    def _headers(self) -> dict[str, str]:
        try:
            return {"Authorization": f"Bearer {self._token.read_text().strip()}"}
        except FileNotFoundError:
            return {}


def _holder(lease: dict[str, Any]) -> str:
    return str(lease.get("spec", {}).get("holderIdentity") or "")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _address_of_cluster() -> str:
    host, port = (os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
    if not host:
        raise EngineUnavailable(
            "KUBERNETES_SERVICE_HOST is not set: a Lease can be used only by a broker in a pod of Kubernetes"
        )
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"
