"""Reserved nodes: maintenance windows that no job's time limit may cross."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from resilient_launch.cluster.fake.db import Database


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """``nodes`` between ``start`` and ``end``, seconds since the epoch; ``flags`` are Slurm's, in its order."""

    name: str
    start: float
    end: float
    nodes: tuple[str, ...]
    flags: tuple[str, ...] = ("MAINT",)
    users: str = "root"

    def is_active(self, now: float) -> bool:
        return self.start <= now < self.end


class Reservations:
    """Every reservation that is not over, by name; kept in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        known: list[dict[str, Any]] = json.loads(database.meta("reservations") or "[]")
        self._by_name = {each["name"]: Reservation(**{**each, **_tuples(each)}) for each in known}

    def __iter__(self) -> Iterator[Reservation]:
        return iter(sorted(self._by_name.values(), key=lambda each: (each.start, each.name)))

    def get(self, name: str) -> Reservation | None:
        return self._by_name.get(name)

    def free_name(self, user: str) -> str:
        """Slurm's own choice for one that was given none."""
        number = 1
        while f"{user}_{number}" in self._by_name:
            number += 1
        return f"{user}_{number}"

    def add(self, reservation: Reservation) -> None:
        self._by_name[reservation.name] = reservation
        self._save()

    def remove(self, name: str) -> None:
        del self._by_name[name]
        self._save()

    def expire(self, now: float) -> bool:
        """Drop those that are over; whether there were any."""
        gone = [each.name for each in self if each.end <= now]
        for name in gone:
            del self._by_name[name]
        if gone:
            self._save()
        return bool(gone)

    def in_maintenance(self, node: str, now: float) -> bool:
        return any(node in each.nodes and each.is_active(now) and "MAINT" in each.flags for each in self)

    def _save(self) -> None:
        self._database.set_meta("reservations", json.dumps([asdict(each) for each in self]))


def _tuples(values: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(values[name]) for name in ("nodes", "flags")}
