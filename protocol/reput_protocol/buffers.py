"""What counts as bytes here.

A decoder takes any `Buffer` and says in its docstring whether what it hands out is a copy or a view of it. A
view of a `bytearray` keeps it from being resized, so nobody grows a buffer whose views are still in use.
"""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes: read-only or writable."""
