"""Checks each request of the broker's ports: who sent it, and whether that user may (RocketMQ: AuthenticationEvaluator,
AuthorizationEvaluator).

`authenticate` comes first for every request, whatever its code and header type; `authorize` comes before the handler.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from typing import Final

import structlog
import trio

from reput_broker.access.audit import Audited, RefusalLog, request_name
from reput_broker.access.model import Account, Need, User, Users
from reput_broker.access.requests import requirement_of
from reput_broker.access.user_file import FileState, UserFile, UserFileRefused
from reput_broker.observe.counters import Counters
from reput_broker.request import Refusal, Request
from reput_protocol.errors import ErrorCode
from reput_protocol.rights import Right
from reput_protocol.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, signature_of, signed_content

log = structlog.get_logger(__name__)

_LOOK_S: Final = 2.0
_UNKNOWN_USERS_SECRET: Final = secrets.token_bytes(32)
"""Requests of unknown users are compared with a signature by it, so that they take as long as others."""


class AccessControl:
    """The users of a broker or name server, and the checks of their requests.

    Args:
        file: with the users; `watch` reads it again when it changes.
        users: its present content.
        configured: the administrator that the configuration names, instead of a user of that name in the file.
    """

    def __init__(
        self, file: UserFile, users: Users, configured: User | None, counters: Counters, seen: FileState
    ) -> None:
        self._file = file
        self.configured = configured
        self._failures = counters.auth_failures
        self._refusals = RefusalLog()
        self._seen = seen
        self._accounts: dict[str, Account] = {}
        self.apply(users)

    def apply(self, users: Users) -> None:
        """Check requests against these users from now on."""
        accounts = {
            user.name: Account(user, users.rules_of(user)) for user in users.users.values() if user.is_enabled
        }
        if self.configured is not None:
            accounts[self.configured.name] = Account(self.configured, ())
        self._accounts = accounts

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

        return self._file.change(checked, apply=self.apply)

    async def watch(self) -> None:
        """Read the file again when it has changed, until cancelled. A file that is not valid changes nothing."""
        while True:
            await trio.sleep(_LOOK_S)
            try:
                seen = await trio.to_thread.run_sync(self._file.state)
                if seen == self._seen:
                    continue
                self._seen = seen
                users = await trio.to_thread.run_sync(self._file.load)
            except UserFileRefused as error:
                log.error(
                    "users_not_read",
                    detail=str(error),
                    hint="the users are as before; correct the file, or restore it",
                )
                continue
            self.apply(users)
            log.info("users_read", path=str(self._file.path), users=len(self._accounts))

    # -- requests ----------------------------------------------------------------------------------------------

    def authenticate(self, request: Request) -> None:
        """Set the user of a request, and of its connection, if the signature is its.

        Raises:
            Refusal: UNAUTHENTICATED.
        """
        if (
            request.principal is not None
        ):  # a request of the broker's own pages, which have checked their user
            return
        ext, version = request.ext, request.header.version
        name, given = ext.get(ACCESS_KEY), ext.get(SIGNATURE)
        if not isinstance(name, str) or not isinstance(given, str):
            raise self._unauthenticated(
                request,
                "",
                "no signature",
                "this broker takes requests of its users only, and this request has no AccessKey and Signature; "
                "give the client a user and its secret",
            )
        account = self._accounts.get(name)
        secret = _UNKNOWN_USERS_SECRET if account is None else account.secret
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
        if account is None or not is_valid:
            raise self._unauthenticated(
                request,
                name,
                "wrong signature",
                "the signature of this request is not that of the user it names; check the client's user and secret",
            )
        client = request.client
        request.principal = client.principal = account.seen_from(client.peer.rpartition(":")[0])

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
            ErrorCode.NO_PERMISSION,
            f"user {user.name!r} lacks the right {need}; an administrator can grant it{how}",
        )


def _has_admin(users: Users) -> bool:
    return any(user.is_admin and user.is_enabled for user in users.users.values())
