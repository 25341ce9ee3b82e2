from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from reput_protocol.buffers import Buffer

F = TypeVar("F")

def cut_frames(
    buffer: Buffer, start: int, total_max: int, header_max: int, made: Callable[[tuple[int, bytes, memoryview]], F]
) -> tuple[list[F], int, int, tuple[int, int] | None]: ...
def text_fields(data: bytes, at: int, fields_max: int) -> dict[str, str]: ...
def typed_fields(ext: Mapping[str, Any], integers: tuple[str, ...], flags: tuple[str, ...]) -> dict[str, Any]: ...
