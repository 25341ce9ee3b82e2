"""Challenges for signatures; administration of users and rules (3001 to 3010), in the JSON of RocketMQ's module auth.

Rights travel as RocketMQ's actions: write as Pub, read as Sub, admin as Create, Update and Delete together, describe as
Get and List. Reput adds to that the groups of rules: `groups` of a user, and their rules under the subject
`Group:NAME`; and the action Replicate of a cluster.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import field

from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.base import I64, Body, CommandHeader, Members, RequestType, Sender
from reput_protocol.errors import HeaderFieldError, ReputError
from reput_protocol.rights import ANY, RIGHTS_OF, Kind, Right, Rule, rule_of
from reput_protocol.wire.header import Value
from reput_protocol.wire.signature import Credentials, RequestSigner, knows_no_challenge

GROUP_MARK: Final = "@"
"""Begins the name of a group of rules, where a user could be named too."""
_SUBJECTS: Final = {"": "User:", GROUP_MARK: "Group:"}
_ALL: Final = frozenset({"ALL", "ANY"})
_ADMINISTER: Final = frozenset({"CREATE", "UPDATE", "DELETE"})
_DESCRIBE: Final = frozenset({"GET", "LIST"})
_PUB, _SUB, _REPLICATE = "PUB", "SUB", "REPLICATE"
_ACTIONS: Final = {
    Right.WRITE: ("Pub",),
    Right.READ: ("Sub",),
    Right.ADMIN: ("Create", "Update", "Delete"),
    Right.DESCRIBE: ("Get", "List"),
    Right.REPLICATE: ("Replicate",),
}


class UserHeader(CommandHeader):
    """Header of 3001 to 3004: which user."""

    username: str


class ListUsersHeader(CommandHeader):
    """Header of 3005: a part of the names."""

    filter: str | None = None


class SignatureChallenge(CommandHeader):
    """Answer header of SIGNATURE_CHALLENGE: what the connection's requests are signed with; without fields: nothing.

    Attributes:
        challenge: 16 bytes in Base64; None if the server has no users.
        time: of the server, in ms.
    """

    challenge: str | None = None
    time: I64 | None = None


class NoSigner(ReputError):
    """The requests of a connection cannot be signed as its server's answer to SIGNATURE_CHALLENGE asks."""


def signer_of(
    credentials: Credentials, code: int, remark: str | None, ext: Mapping[str, Value], now_s: Callable[[], float]
) -> RequestSigner | Credentials | None:
    """Return what signs the requests of a connection, by its server's answer to SIGNATURE_CHALLENGE.

    A server without users gets no signatures, None. RocketMQ's, and older ones of Reput, do not know the question and
    get signatures in RocketMQ's form, which the credentials make.

    Raises:
        NoSigner: the server refuses for another reason, may not get RocketMQ's form, or its challenge is unreadable.
    """
    if code != ResponseCode.SUCCESS:
        if not knows_no_challenge(code, remark):
            raise NoSigner(f"it rejected the request for a challenge for signatures: {remark or f'code {code}'}")
        if not credentials.rocketmq_signatures:
            raise NoSigner(
                "it does not support signatures in Reput's form, and the client may not use RocketMQ's "
                "(rocketmq_signatures, access.send_rocketmq_signatures); upgrade it, or permit RocketMQ's form"
            )
        return credentials
    try:
        given = SignatureChallenge.from_ext(ext)
        if given.challenge is None or given.time is None:
            return None
        challenge = b64decode(given.challenge, validate=True)
    except (HeaderFieldError, ValueError) as error:
        raise NoSigner(f"its challenge cannot be read: {error}") from error
    offset_ms = given.time - int(1000 * now_s())
    return RequestSigner(credentials, challenge, lambda: offset_ms + int(1000 * now_s()))


class AclHeader(CommandHeader):
    """Header of 3006 to 3009: whose rules, `User:NAME` or `Group:NAME`."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


class ListAclsHeader(CommandHeader):
    """Header of 3010: parts of the names of users and resources."""

    subject_filter: str | None = None
    resource_filter: str | None = None


class UserInfo(Body):
    """A user. No answer has the password. Of a change, what is None stays as it is."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None
    groups: list[str] | None = None
    """The groups whose rules it has (Reput's)."""


class PolicyEntry(Members):
    """Actions on one resource, `Topic:NAME`, `Group:NAME` or `Cluster:NAME`."""

    resource: str = ""
    actions: list[str] = []
    source_ips: list[str] | None = None
    decision: str = "Allow"

    @classmethod
    def of(cls, rule: Rule) -> PolicyEntry:
        """Return a rule as it travels."""
        actions = sorted(action for right in rule.rights for action in _ACTIONS[right])
        return cls(
            f"{rule.kind.value.capitalize()}:{rule.pattern}",
            ["All"] if rule.rights == RIGHTS_OF[rule.kind] else actions,
            [str(source) for source in rule.sources] or None,
            "Deny" if rule.is_denial else "Allow",
        )

    def rule(self, cluster: str = ANY) -> Rule:
        """Return the rule.

        Args:
            cluster: the name by which `Cluster:NAME` may name the cluster.

        Raises:
            ValueError: there is no such rule. The text says what has no counterpart.
        """
        decision = self.decision.upper()
        if decision not in ("ALLOW", "DENY"):
            raise ValueError(f"a decision is Allow or Deny, not {self.decision!r}")
        resource = resource_of(self.resource, cluster)
        rights = _rights_of(Kind(resource.partition(":")[0]), self.actions)
        return rule_of(resource, sorted(rights), is_denial=decision == "DENY", sources=self.source_ips or ())


def resource_of(text: str, cluster: str = ANY) -> str:
    """Return a resource of RocketMQ as rules have it; arguments and errors as of `PolicyEntry.rule`."""
    kind, _, pattern = text.partition(":")
    if kind.lower() == Kind.CLUSTER and pattern == cluster:
        pattern = ANY
    return rule_of(f"{kind.lower()}:{pattern}", [Right.DESCRIBE]).resource


def subject_text(name: str) -> str:
    """Return the subject of a user's name, or of `@` and the name of a group of rules."""
    mark = GROUP_MARK if name.startswith(GROUP_MARK) else ""
    return _SUBJECTS[mark] + name.removeprefix(mark)


def subject_name(text: str) -> str:
    """Return what `subject_text` was made of. Raises ValueError."""
    kind, colon, name = text.partition(":")
    for mark, prefix in _SUBJECTS.items():
        if colon and f"{kind.capitalize()}:" == prefix:
            return mark + name
    raise ValueError(f"{text!r} is not a user; write User:NAME")


def _rights_of(kind: Kind, actions: Iterable[str]) -> frozenset[Right]:
    given = {action.strip().upper() for action in actions}
    if given & _ALL:
        return RIGHTS_OF[kind]
    unknown = given - _ADMINISTER - _DESCRIBE - {_PUB, _SUB, _REPLICATE}
    if unknown or not given:
        raise ValueError(f"{', '.join(sorted(unknown)) or 'nothing'} is not an action of RocketMQ")
    if given & _ADMINISTER and not given >= _ADMINISTER:
        raise ValueError("Create, Update and Delete are one right here, admin; give all three or none")
    if kind is Kind.GROUP and _SUB in given:
        # It means nothing for a group, and tools give the same actions on topics and groups.
        given.discard(_PUB)
    rights = {
        Right.WRITE: _PUB in given,
        Right.READ: _SUB in given,
        Right.ADMIN: given >= _ADMINISTER,
        Right.DESCRIBE: bool(given & _DESCRIBE),
        Right.REPLICATE: _REPLICATE in given,
    }
    return frozenset(right for right, is_given in rights.items() if is_given)


class Policy(Members):
    """Some rules of a user."""

    policy_type: str | None = None
    entries: list[PolicyEntry] = []


class AclInfo(Body):
    """The rules of a user or group."""

    subject: str | None = None
    policies: list[Policy] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, rules: Iterable[Rule]) -> AclInfo:
        """Return the rules of a user, or of `@` and a group, as they travel."""
        return cls(subject_text(name), [Policy("Custom", [PolicyEntry.of(rule) for rule in rules])])

    def rules(self, cluster: str = ANY) -> list[Rule]:
        """Return the rules; argument and errors as of `PolicyEntry.rule`, and default policies are refused."""
        if any((policy.policy_type or "Custom").upper() != "CUSTOM" for policy in self.policies):
            raise ValueError("there are no default policies; give custom ones")
        return [entry.rule(cluster) for policy in self.policies for entry in policy.entries]


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(
        RequestCode.SIGNATURE_CHALLENGE, sender=Sender.CLIENT, handler_checks="none, and no signature",
    ),
    *(RequestType(
        code, header, body, cluster=Right.ADMIN, handler_checks="a user made with --admin",
        unserved="this broker has no users, because access control is off (access.enabled)",
    )
    for code, header, body in (
        (RequestCode.AUTH_CREATE_USER, UserHeader, UserInfo),
        (RequestCode.AUTH_UPDATE_USER, UserHeader, UserInfo),
        (RequestCode.AUTH_DELETE_USER, UserHeader, None),
        (RequestCode.AUTH_GET_USER, UserHeader, None),
        (RequestCode.AUTH_LIST_USER, ListUsersHeader, None),
        (RequestCode.AUTH_CREATE_ACL, AclHeader, AclInfo),
        (RequestCode.AUTH_UPDATE_ACL, AclHeader, AclInfo),
        (RequestCode.AUTH_DELETE_ACL, AclHeader, None),
        (RequestCode.AUTH_GET_ACL, AclHeader, None),
        (RequestCode.AUTH_LIST_ACL, ListAclsHeader, None),
    )),
)  # fmt: skip
