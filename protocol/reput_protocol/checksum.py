"""CRC-32, the checksum of records and of the broker's own files: what `zlib.crc32` computes."""

from reput_protocol.kernel.records import crc32

__all__ = ["crc32"]
