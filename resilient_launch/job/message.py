"""What the threads of a node agent put into its inbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Message:
    """What a thread tells the main one. ``kind`` names it, ``value`` is its content."""

    kind: str
    value: Any = None
