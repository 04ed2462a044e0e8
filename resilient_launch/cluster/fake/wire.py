"""Frames on the state directory's unix socket: a frame is a list of byte strings.

Neither json nor socket is imported here: every Slurm command pays for this module's imports at start-up.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADER_BYTES = 4
MAX_FRAME_BYTES = 64 * 1024 * 1024


def encode(fields: Sequence[bytes]) -> bytes:
    """One frame, ready to be sent."""
    payload = b"".join(len(field).to_bytes(_HEADER_BYTES, "big") + field for field in fields)
    return len(payload).to_bytes(_HEADER_BYTES, "big") + payload


class Decoder:
    """Turns received bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[list[bytes]]:
        """Every frame that ``data`` completes. Raises ValueError for a frame that can't be one of ours."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= _HEADER_BYTES:
            size = int.from_bytes(self._buffer[:_HEADER_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {size} bytes")
            if len(self._buffer) < _HEADER_BYTES + size:
                break
            frames.append(_fields(bytes(self._buffer[_HEADER_BYTES : _HEADER_BYTES + size])))
            del self._buffer[: _HEADER_BYTES + size]
        return frames


def _fields(payload: bytes) -> list[bytes]:
    fields, position = [], 0
    while position < len(payload):
        size = int.from_bytes(payload[position : position + _HEADER_BYTES], "big")
        position += _HEADER_BYTES
        if position + size > len(payload):
            raise ValueError("a field longer than its frame")
        fields.append(payload[position : position + size])
        position += size
    return fields


def join(items: Sequence[str]) -> bytes:
    """Words (arguments, NAME=value pairs) as one field; none of them can hold a NUL."""
    return b"\0".join(item.encode("utf-8", "surrogateescape") for item in items)


def split(field: bytes) -> list[str]:
    return [item.decode("utf-8", "surrogateescape") for item in field.split(b"\0")] if field else []
