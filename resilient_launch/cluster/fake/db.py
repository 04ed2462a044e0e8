"""What must survive a kill of the controller: one sqlite file, written before anything is answered or started."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from resilient_launch.cluster.fake.model import Job, Node

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (job_id INTEGER PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS nodes (name TEXT PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
    job_id INTEGER NOT NULL, run INTEGER NOT NULL, document TEXT NOT NULL, PRIMARY KEY (job_id, run)
);
"""


class Database:
    """Jobs, nodes and the accounting of finished runs. Every write waits for ``commit``."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.executescript(_SCHEMA)
        self._open = False

    def close(self) -> None:
        self._connection.close()

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        if not self._open:
            self._connection.execute("BEGIN IMMEDIATE")
            self._open = True
        self._connection.execute(statement, values)

    def commit(self) -> None:
        if self._open:
            self._connection.execute("COMMIT")
            self._open = False

    def meta(self, name: str) -> str | None:
        row = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_meta(self, name: str, value: str) -> None:
        self._write("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def jobs(self) -> list[Job]:
        rows = self._connection.execute("SELECT document FROM jobs ORDER BY job_id")
        return [Job.from_dict(json.loads(document)) for (document,) in rows]

    def save_job(self, job: Job) -> None:
        self._write("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (job.job_id, json.dumps(job.to_dict())))

    def delete_job(self, job_id: int) -> None:
        self._write("DELETE FROM jobs WHERE job_id = ?", (job_id,))

    def nodes(self) -> dict[str, Node]:
        rows = self._connection.execute("SELECT document FROM nodes")
        return {node.name: node for node in (Node(**json.loads(document)) for (document,) in rows)}

    def save_node(self, node: Node) -> None:
        self._write("INSERT OR REPLACE INTO nodes VALUES (?, ?)", (node.name, json.dumps(asdict(node))))

    def save_run(self, job: Job) -> None:
        """Keep the run that ``job`` is in: sacct shows it after the job went on or left the controller's memory."""
        slim = {**job.to_dict(), "request": {**asdict(job.request), "script": "", "environment": ()}}
        values = (job.job_id, job.run, json.dumps(slim))
        self._write("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", values)

    def runs(self, job_ids: Iterable[int] | None = None) -> list[Job]:
        """The finished runs, oldest first; of the given jobs and arrays, or all."""
        query = "SELECT document FROM runs"
        wanted = None if job_ids is None else sorted(set(job_ids))
        if wanted is not None:
            marks = ",".join("?" * len(wanted))
            query += f" WHERE job_id IN ({marks}) OR json_extract(document, '$.array.array_id') IN ({marks})"
        rows = self._connection.execute(query + " ORDER BY job_id, run", [*(wanted or []), *(wanted or [])])
        return [Job.from_dict(json.loads(document)) for (document,) in rows]
