"""How well accounting answers: at once, late, or not at all."""

from __future__ import annotations

from typing import Literal

from resilient_launch.cluster.fake.db import Database
from resilient_launch.cluster.fake.spec import FakeSpec


class Accounting:
    """Kept in the database, so that it outlives the controller."""

    def __init__(self, spec: FakeSpec, database: Database) -> None:
        self._spec, self._database = spec, database

    @property
    def mode(self) -> str:
        """``on``, ``lost`` (its database does not answer) or ``disabled`` (the cluster has none)."""
        return (self._database.meta("accounting") or "on") if self._spec.accounting else "disabled"

    @property
    def delay_s(self) -> float:
        """How long sacct waits for its answer."""
        return float(self._database.meta("accounting_delay_s") or 0)

    def set(self, mode: Literal["on", "lost"], delay_s: float) -> None:
        self._database.set_meta("accounting", mode)
        self._database.set_meta("accounting_delay_s", str(delay_s))
