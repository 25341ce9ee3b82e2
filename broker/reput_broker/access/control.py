"""Checks each request of the broker's ports: who sent it, and whether that user may (RocketMQ: AuthenticationEvaluator,
AuthorizationEvaluator).

`authenticate` comes first for every request, whatever its code and header type; `authorize` comes before the handler.
`open_access` makes the access control that the configuration asks for, when a broker or name server starts.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from base64 import b64encode
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final, TypeAlias

import structlog
import trio

from reput_broker.access.model import STRANGER, Account, Need, User, Users
from reput_broker.access.requests import Audited, RefusalLog, request_name, requirement_of
from reput_broker.access.user_file import FileState, UserFile, UserFileRefused, write_private
from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import AccessConfig
from reput_broker.observe.counters import Counters
from reput_broker.remoting.request import Refusal, Request
from reput_protocol.codes import RequestCode
from reput_protocol.commands.users import SignatureChallenge
from reput_protocol.errors import ErrorCode, ReputError
from reput_protocol.rights import Right, source_of
from reput_protocol.wire.header import Value
from reput_protocol.wire.signature import (
    ACCESS_KEY,
    CHALLENGE_SIZE,
    REPUT_SIGNATURE,
    SECRET_LENGTH_MIN,
    SECURITY_TOKEN,
    SIGNATURE,
    SignatureChecker,
    SignatureInvalid,
    signature_of,
    signed_content,
)

log = structlog.get_logger(__name__)

_SINCE_EPOCH_MS: Final = (time.time_ns() - time.monotonic_ns()) // 1_000_000
_LOOK_S: Final = 2.0
_UNKNOWN_USERS_SECRET: Final = secrets.token_bytes(32)
"""Requests of unknown users are compared with a signature by it, so that they take as long as others."""
_SHOWN_USERS: Final = 10
_CHALLENGE: Final = RequestCode.SIGNATURE_CHALLENGE.value
_NO_SIGNATURE: Final = (
    "this broker takes requests of its users only, and this request has no AccessKey and Signature; give the client a "
    "user and its secret"
)
_WRONG_SIGNATURE: Final = (
    "the signature of this request is not that of the user it names; check the client's user and secret"
)
_NOT_ROCKETMQS: Final = (
    "this broker takes signatures in Reput's form only (access.accept_rocketmq_signatures), and this request has one "
    "in RocketMQ's; use a client of Reput, or have the broker accept both"
)
_WINDOW_S: Final = 300.0
_OF_ONE_USER: Final = 5
_OF_ONE_ADDRESS: Final = 50
"""Behind a proxy, all browsers have its address."""
_KEPT_MAX: Final = 4096
_PREFIX_BITS: Final = 64
"""Of an IPv6 address: a host has this network to itself."""


def _clock_ms() -> int:
    """Return the time since the epoch, as this process reckons it.

    Signatures are refused by it, so it may not jump when the machine's clock is set.
    """
    return _SINCE_EPOCH_MS + time.monotonic_ns() // 1_000_000


class AccessControl:
    """The users of a broker or name server, and the checks of their requests.

    Args:
        file: with the users; `watch` reads it again when it changes.
        users: its content, as it was read at `seen`.
        options: the administrator whom they name replaces a user of that name in the file.
    """

    def __init__(
        self, file: UserFile, users: Users, seen: FileState, options: AccessConfig, counters: Counters
    ) -> None:
        self._file = file
        self.configured = (
            User(options.admin_user, options.admin_secret, is_admin=True) if options.admin_secret else None
        )
        self._takes_rocketmqs = options.accept_rocketmq_signatures
        self._tolerance_ms = int(options.signature_tolerance * 1000)
        self._failures = counters.auth_failures
        self._refusals = RefusalLog()
        self.attempts = Attempts()
        """Wrong passwords, of pages and of logins."""
        self._applying = threading.Lock()
        self._seen = seen
        self._users = Users()
        self._accounts: dict[str, Account] = {}
        self._short: list[str] = []
        self._apply(users)

    def _apply(self, users: Users) -> None:
        """Check requests against these users from now on."""
        before, kept = self._users, self._accounts
        has_same_groups = users.groups is before.groups
        accounts = {}
        for name, user in users.users.items():
            if not user.is_enabled:
                continue
            account = kept.get(name) if has_same_groups and before.users.get(name) is user else None
            accounts[name] = account or Account(user, users.rules_of(user))
        if self.configured is not None:
            accounts[self.configured.name] = Account(self.configured, ())
        self._users, self._accounts = users, accounts
        self._warn_of_short_secrets()

    def _warn_of_short_secrets(self) -> None:
        """Log the users whose secrets are shorter than a new one may be, when they change."""
        short = sorted(name for name, account in self._accounts.items() if len(account.secret) < SECRET_LENGTH_MIN)
        if short and short != self._short:
            log.warning(
                "short_secrets",
                users=short[:_SHOWN_USERS],
                count=len(short),
                hint=f"give each a secret of {SECRET_LENGTH_MIN} or more characters: reput user alter NAME --generate",
            )
        self._short = short

    @property
    def user_names(self) -> tuple[str, ...]:
        """The users that may do something."""
        return tuple(self._accounts)

    def account(self, name: str, host: str) -> Account | None:
        """Return a user that is enabled, with its rights at an address, or None."""
        account = self._accounts.get(name)
        return None if account is None else account.seen_from(host)

    def stored(self) -> Users:
        """Return the users in the file. Blocks. Raises UserFileRefused."""
        return self._file.load()

    def change(self, change: Callable[[Users], Users]) -> Users:
        """Change the users in the file and in force; return them. Blocks.

        Raises:
            UserFileRefused: the file cannot be read or written.
            ValueError: no administrator would be left to change users by requests. Errors of `change` are raised as
                they are. Nothing was changed.
        """

        def checked(users: Users) -> Users:
            after = change(users)
            if self.configured is None and _has_admin(users) and not _has_admin(after):
                raise ValueError("no administrator would be left; make another user one first")
            return after

        def apply(users: Users, state: FileState) -> None:
            with self._applying:
                self._seen = state
                self._apply(users)

        return self._file.change(checked, apply=apply)

    async def watch(self) -> None:
        """Read the file again when it has changed, until cancelled. A file that is not valid changes nothing."""
        while True:
            await trio.sleep(_LOOK_S)
            try:
                if not await trio.to_thread.run_sync(self.refresh):
                    continue
            except UserFileRefused as error:
                log.error(
                    "users_not_read", detail=str(error), hint="the users are as before; correct the file, or restore it"
                )
                continue
            log.info("users_read", path=str(self._file.path), users=len(self._accounts))

    def refresh(self) -> bool:
        """Read the file if it has changed, and tell whether its users are in force now. Blocks.

        What is read counts only if the file has not been replaced meanwhile: `change` may have applied newer users.

        Raises:
            UserFileRefused: the file cannot be used. It is not read again before it changes.
        """
        seen = self._file.state()
        if seen == self._seen:
            return False
        try:
            users, seen = self._file.read()
        except UserFileRefused:
            self._seen = seen
            raise
        with self._applying:
            if self._file.state() != seen:
                return False  # the next look reads the newer one
            self._seen = seen
            self._apply(users)
        return True

    # -- requests ----------------------------------------------------------------------------------------------

    def challenge(self, request: Request) -> Mapping[str, Value]:
        """Return the fields of an answer to SIGNATURE_CHALLENGE; a connection has one challenge."""
        client = request.client
        if client.signatures is None:
            client.signatures = SignatureChecker(secrets.token_bytes(CHALLENGE_SIZE))
        text = b64encode(client.signatures.challenge).decode()
        return SignatureChallenge(text, _clock_ms()).to_ext(request.header_type)

    def authenticate(self, request: Request) -> None:
        """Set the user of a request, and of its connection, if the signature is its.

        A request for a challenge needs none; more than one of a connection count as requests without a signature.

        Raises:
            Refusal: UNAUTHENTICATED.
        """
        if request.principal is not None:
            return  # a request of the broker's own pages, which have checked their user
        ext = request.ext
        if request.header.code == _CHALLENGE and ACCESS_KEY not in ext:
            request.client.unauthenticated += request.client.signatures is not None
            request.principal = STRANGER
            return
        name = ext.get(ACCESS_KEY)
        if type(name) is not str or not (REPUT_SIGNATURE in ext or SIGNATURE in ext):
            raise self._unauthenticated(request, "", "no signature", _NO_SIGNATURE)
        account = self._accounts.get(name)
        secret = _UNKNOWN_USERS_SECRET if account is None else account.secret
        try:
            if REPUT_SIGNATURE in ext:
                self._check(request, secret)
            else:
                self._check_rocketmqs(request, secret)
        except SignatureInvalid as error:
            raise self._unauthenticated(request, name, "wrong signature", str(error)) from None
        if account is None:  # no signature can be its, as its secret is not known to anybody
            raise self._unauthenticated(request, name, "wrong signature", _WRONG_SIGNATURE)
        client = request.client
        client.unauthenticated = 0
        request.principal = client.principal = account.seen_from(client.peer.rpartition(":")[0])

    def _check(self, request: Request, secret: bytes) -> None:
        """Check a signature in Reput's form. Raises SignatureInvalid."""
        signatures = request.client.signatures
        if signatures is None:
            raise SignatureInvalid(
                "this connection has no challenge, which the signature needs; send SIGNATURE_CHALLENGE first"
            )
        signatures.check(secret, request.header, request.body, _clock_ms(), self._tolerance_ms)

    def _check_rocketmqs(self, request: Request, secret: bytes) -> None:
        """Check a signature in RocketMQ's form. Raises SignatureInvalid."""
        ext, version, given = request.ext, request.header.version, request.ext[SIGNATURE]
        if type(given) is not str:
            raise SignatureInvalid(_WRONG_SIGNATURE)
        signature = given.encode("utf-8", "replace")
        is_valid = False
        try:
            expected = signature_of(secret, signed_content(ext, version), request.body)
            is_valid = hmac.compare_digest(expected.encode(), signature)
            if not is_valid and SECURITY_TOKEN in ext:  # which the Go client sends and does not sign
                content = signed_content(ext, version, without=SECURITY_TOKEN)
                expected = signature_of(secret, content, request.body)
                is_valid = hmac.compare_digest(expected.encode(), signature)
        except ValueError:
            pass  # a field is not text, and cannot have been signed
        if not is_valid:
            raise SignatureInvalid(_WRONG_SIGNATURE)
        if not self._takes_rocketmqs:
            raise SignatureInvalid(_NOT_ROCKETMQS)

    def authorize(self, request: Request) -> None:
        """Check that the user of a request has the rights that it needs.

        Raises:
            Refusal: NO_PERMISSION; it names the first right that is missing, whether or not its topic exists.
            HeaderFieldError, BodyMalformed: the request does not say what it is about.
        """
        user, requirement = request.principal, requirement_of(request.header.code)
        assert isinstance(user, Account), "it was authenticated"
        if requirement.is_administrative:
            audited = request.traffic = Audited(request, user.name)
            audited.needs = requirement.needs(request)
        if user.is_admin:
            return
        for need in requirement.needs(request):
            if not user.may(need):
                raise self._forbidden(request, user, str(need), need)
        if requirement.writes_something and not user.may_write_something():
            raise self._forbidden(request, user, requirement.text, None)

    def check_password(self, name: str, password: str, host: str) -> Account | None:
        """Return the user of a page with its rights at an address, None if the password is not its secret.

        Both take the same time.
        """
        account = self._accounts.get(name)
        secret = _UNKNOWN_USERS_SECRET if account is None else account.secret
        is_valid = hmac.compare_digest(password.encode("utf-8", "replace"), secret)
        return self.account(name, host) if is_valid else None

    def note_page_refused(self, user: str, page: str, peer: str, need: Need | None) -> None:
        """Count and log a refused request for a page; without `need`, its user is not known."""
        if need is not None:
            self._failures["forbidden"] += 1
            self._refusals.forbidden(user, page, str(need), peer)
        else:
            self._failures["bad_credentials"] += 1
            self._refusals.bad_credentials(user, page, "wrong password" if user else "no password", peer)

    def _unauthenticated(self, request: Request, user: str, reason: str, text: str) -> Refusal:
        self._failures["bad_credentials"] += 1
        name = request_name(request.header.code)
        self._refusals.bad_credentials(user, name, reason, request.client.peer)
        request.client.unauthenticated += 1
        if request.header.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and not request.is_native:
            text += "; RocketMQ's clients report this as 'No route info of this topic', and log this text"
        return Refusal(ErrorCode.UNAUTHENTICATED, text)

    def _forbidden(self, request: Request, user: Account, need: str, lacking: Need | None) -> Refusal:
        self._failures["forbidden"] += 1
        self._refusals.forbidden(user.name, request_name(request.header.code), need, request.client.peer)
        denial = None if lacking is None else user.deciding_rule(lacking)
        if denial is not None:
            return Refusal(
                ErrorCode.NO_PERMISSION,
                f"user {user.name!r} is denied the right {need} by a rule on {denial.resource}; "
                f"an administrator can see and change it: reput acl list {user.name}",
            )
        how = ""
        decisive = None if lacking is None else lacking.decisive
        if decisive is not None:
            how = f": reput acl allow {user.name} {decisive.right} {decisive.resource}"
            if decisive.right is Right.DESCRIBE:
                how += "; a grant of read, write or admin, whichever is needed, includes it"
        return Refusal(
            ErrorCode.NO_PERMISSION, f"user {user.name!r} lacks the right {need}; an administrator can grant it{how}"
        )


def _has_admin(users: Users) -> bool:
    return any(user.is_admin and user.is_enabled for user in users.users.values())


@dataclass(eq=False, repr=False)
class Attempts:
    """Limits how often a secret can be tried: the wrong ones of the last five minutes, by address, and by address and
    user.

    After 5 for one user, or 50 in all, an address has to wait until the oldest of them is five minutes old. A right
    secret does not count then either.
    """

    _clock: Callable[[], float] = time.monotonic
    _wrong: OrderedDict[Hashable, deque[float]] = field(default_factory=OrderedDict, init=False)

    def wait_s(self, host: str, user: str) -> float:
        """Return how long an address has to wait before it may try a secret of a user; 0 if it may."""
        now, address = self._clock(), _network(host)
        wait = 0.0
        for key, limit in ((address, _OF_ONE_ADDRESS), ((address, user), _OF_ONE_USER)):
            times = self._wrong.get(key)
            while times and times[0] <= now - _WINDOW_S:
                times.popleft()
            if times and len(times) >= limit:
                wait = max(wait, times[-limit] + _WINDOW_S - now)
        return wait

    def wrong(self, host: str, user: str) -> None:
        """Count a wrong secret."""
        now, address = self._clock(), _network(host)
        for key in (address, (address, user)):
            times = self._wrong.setdefault(key, deque(maxlen=_OF_ONE_ADDRESS))
            times.append(now)
            self._wrong.move_to_end(key)
        while len(self._wrong) > _KEPT_MAX:
            self._wrong.popitem(last=False)

    def right(self, host: str, user: str) -> None:
        """Forget the wrong secrets of a user at an address: this one was right."""
        self._wrong.pop((_network(host), user), None)


def _network(host: str) -> Hashable:
    address = source_of(host)
    if isinstance(address, IPv6Address):
        return int(address) >> (128 - _PREFIX_BITS)
    return address or host


class InsecureAccess:
    """Refuses administrative requests of other machines, and logs those of this one."""

    def authenticate(self, request: Request) -> None:
        """Do nothing: requests have no user."""

    def challenge(self, request: Request) -> Mapping[str, Value]:
        """Return no fields: requests need no signatures."""
        del request
        return {}

    def authorize(self, request: Request) -> None:
        """Check that an administrative request comes from this machine.

        Raises:
            Refusal: NO_PERMISSION.
        """
        if request.principal is not None or not requirement_of(request.header.code).is_administrative:
            return
        request.traffic = Audited(request, "")
        if not request.client.is_local:
            raise Refusal(
                ErrorCode.NO_PERMISSION,
                "this broker takes administrative requests from its own machine only, because access control is off; "
                "send it from there, or set access.enabled there and sign the request as an administrator",
            )


Access: TypeAlias = AccessControl | InsecureAccess | None
"""What checks the requests of a broker; None: nothing, since only this machine can connect."""

SECRET_FILE: Final = "admin.secret"
"""Next to the file with the users: the secret of the administrator that was made by itself."""


class NoUsers(ReputError):
    """Access control is on and there is no user. Nothing was changed."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"access.enabled is on, but {path} has no users and access.admin_secret is empty; put the secret of an "
            "administrator into a file that REPUT_ACCESS__ADMIN_SECRET_FILE names, or run "
            f"`reput user create admin --admin --file {path}`"
        )
        self.path = path


def user_file_of(config: BrokerConfig) -> UserFile:
    """Return the file with the users: that of `access.file`, or the one in the data directory. Reads nothing."""
    return UserFile(Path(config.access.file) if config.access.file else config.data_dir / "access" / "users.json")


def check_users(config: BrokerConfig) -> None:
    """Check that a start with access control would have a user. Blocks, and changes nothing.

    Raises:
        NoUsers: it would have none.
        UserFileRefused: the file with the users cannot be used.
    """
    if config.access.enabled:
        file = user_file_of(config)
        _require_user(config.access, file, file.load())


def open_access(config: BrokerConfig, counters: Counters) -> Access:
    """Return what checks the requests; None if nothing does, because only this machine can connect. Blocks.

    Raises:
        NoUsers: there is no user.
        UserFileRefused: the file with the users cannot be used.
    """
    options = config.access
    if not options.enabled:
        return InsecureAccess() if config.is_reachable else None
    file = user_file_of(config)
    users, seen = file.read()
    _require_user(options, file, users)
    if not options.admin_secret and not users.users and options.generate_admin:
        _generate(file, options.admin_user)
        users, seen = file.read()
    return AccessControl(file, users, seen, options, counters)


def _require_user(options: AccessConfig, file: UserFile, users: Users) -> None:
    """Raise NoUsers if there is no enabled user and none will be made."""
    is_generated = options.generate_admin and not users.users
    if not (options.admin_secret or is_generated or any(user.is_enabled for user in users.users.values())):
        raise NoUsers(file.path)


def _generate(file: UserFile, name: str) -> None:
    """Make an administrator with a new secret, and write that into a file of its own."""
    secret = secrets.token_hex(32)
    path = file.path.with_name(SECRET_FILE)
    file.change(lambda users: users.with_user(User(name, secret, is_admin=True)))
    path.unlink(missing_ok=True)
    write_private(path, secret.encode() + b"\n")
    log.info("administrator_made", user=name, secret_file=str(path), hint="only the owner of the file can read it")
