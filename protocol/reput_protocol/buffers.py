"""The type of bytes arguments.

A view of a `bytearray` keeps it from being resized, so do not grow a buffer while views of it are in use.
"""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes, read-only or writable; a docstring says whether a result is a copy or a view."""
