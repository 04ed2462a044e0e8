"""Content digests by name. xxh3-128 finds corruption at memory speed; the others also resist tampering."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol, cast

import xxhash

from resilient_launch.core.errors import UsageError

Buffer = bytes | bytearray | memoryview


class Hash(Protocol):
    """The part of hashlib's interface that is used here."""

    def update(self, data: Buffer, /) -> None: ...
    def digest(self) -> bytes: ...
    def hexdigest(self) -> str: ...


DEFAULT_ALGORITHM = "xxh3-128"
_FACTORIES: dict[str, Callable[[], Hash]] = {
    "xxh3-128": xxhash.xxh3_128,
    "blake2b": lambda: hashlib.blake2b(digest_size=32),
    "blake3": lambda: _blake3(),
    "sha256": hashlib.sha256,
}

ALGORITHMS = tuple(_FACTORIES)


def new_hash(algorithm: str) -> Hash:
    """An empty digest. Raises UsageError for an unknown name."""
    try:
        return _FACTORIES[algorithm]()
    except KeyError:
        raise UsageError(
            f"digest algorithm {algorithm!r}", why="is not known", hint=f"one of {', '.join(_FACTORIES)}"
        ) from None


def _blake3() -> Hash:
    try:
        from blake3 import blake3
    except ImportError:
        raise UsageError(
            "digest algorithm 'blake3'",
            why="its package is not installed",
            hint="pip install blake3, or digest: sha256",
        ) from None
    return cast("Hash", blake3())


def hash_hex(algorithm: str, data: Buffer) -> str:
    """The digest of ``data`` in hexadecimal."""
    value = new_hash(algorithm)
    value.update(data)
    return value.hexdigest()


def combine(algorithm: str, chunks: tuple[str, ...]) -> str:
    """A file's digest: the digest over its chunks' digests, so that chunks can be hashed and checked on their own."""
    return hash_hex(algorithm, b"".join(bytes.fromhex(chunk) for chunk in chunks))
