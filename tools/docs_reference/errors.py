"""The page of errors, from the exceptions and their docstrings."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping

from docs_reference.markdown import cell, escaped
from reput_client import errors
from reput_protocol.errors import ErrorCode, ReputError, error_from_response

HEAD = """\
# Errors

Every error says what failed, why, and, where there is one, the remedy.
[Which of them leave a message stored](../client.md#errors) is on the page of the client.

## Exceptions

All are exported by `reput_client`, can be pickled, and are subclasses of `ReputError`. Those of the
broker's refusals are subclasses of `BrokerError`, with `error` (an `ErrorCode`), `retryable`,
`response_code` and `remark`.
"""

REFUSALS = """
## Refusals

A broker refuses a request with a response code and a remark `SYMBOL: what is wrong; what to do about it`.
*Retry*: the same request can succeed a little later without any change, and the refused one had no
effect.

| Number | Symbol | Response code | Retry | Exception | Meaning |
|---|---|---|---|---|---|
"""


def page() -> str:
    """Return the page."""
    return "".join((HEAD, *_exceptions(), REFUSALS, *_refusals()))


def _exceptions() -> Iterator[str]:
    for name in errors.__all__:
        kind = getattr(errors, name)
        if issubclass(kind, ReputError):
            bases = [base.__name__ for base in kind.__bases__ if base not in (ReputError, Exception)]
            of = f" ({', '.join(f'`{base}`' for base in bases)})" if bases else ""
            yield f"\n### {name}\n\n{escaped(inspect.getdoc(kind) or '')}{of}\n"


def _refusals() -> Iterator[str]:
    meanings = _member_docstrings(ErrorCode)
    for error in ErrorCode:
        kind = type(error_from_response(error.response_code, f"{error.name}: text", {}))
        code = f"{int(error.response_code)} {error.response_code.name}"
        retry = "yes" if error.retryable else "no"
        meaning = cell(meanings[error.name])
        yield f"| {error.number} | `{error.name}` | {code} | {retry} | `{kind.__name__}` | {meaning} |\n"


def _member_docstrings(kind: type) -> Mapping[str, str]:
    """Return the string below each member of a class; Python keeps it only in the source."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for member, text in zip(definition.body, definition.body[1:], strict=False):
        match member, text:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(docstring))):
                found[name] = docstring
    return found
