"""The console's API over HTTP, as a browser uses it: cookies, and the headers that browsers send."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlencode


class Answer(NamedTuple):
    """An answer; `members` is the JSON of its body, None if it has none."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    members: Any


class ConsoleClient:
    """One browser."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.cookie = ""

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Make a request."""
        connection = HTTPConnection(self.address, timeout=30)
        try:
            sent = {"User-Agent": "Mozilla/5.0", **({"Cookie": self.cookie} if self.cookie else {}), **(headers or {})}
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        given = {name.lower(): value for name, value in response.getheaders()}
        if "set-cookie" in given:
            self.cookie = given["set-cookie"].partition(";")[0]
        is_json = given.get("content-type", "").startswith("application/json")
        return Answer(response.status, given, data, json.loads(data) if is_json and data else None)

    def get(self, page: str, /, **values: object) -> Any:
        """Return the members of a page that must succeed."""
        answer = self.ask("GET", self.path(page, **values))
        assert answer.status == 200, answer
        return answer.members

    def refused(self, name: str, **values: object) -> Answer:
        """Return the answer to a page that must fail."""
        answer = self.ask("GET", self.path(name, **values))
        assert answer.status >= 400, answer
        return answer

    def post(self, name: str, members: object, **headers: str) -> Answer:
        """Make a change, with the headers of the console's page unless others are given."""
        sent = {
            "Content-Type": "application/json",
            "X-Reput-Console": "1",
            "Origin": f"http://{self.address}",
            "Sec-Fetch-Site": "same-origin",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        return self.ask("POST", self.path(name), json.dumps(members).encode(), sent)

    @staticmethod
    def path(page: str, /, **values: object) -> str:
        """Return the path of a page with parameters."""
        return f"/console/api/{page}" + (f"?{urlencode(values)}" if values else "")
