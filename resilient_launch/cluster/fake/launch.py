"""Puts a step's launch file into the spool and starts its supervisor."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilient_launch.cluster.fake import filenames, proctree
from resilient_launch.cluster.fake.environment import MARKER, batch_environment, task_environment
from resilient_launch.cluster.fake.model import Job, Step, StepNode
from resilient_launch.cluster.fake.orders import place_key
from resilient_launch.cluster.fake.spec import FakeSpec

PACKAGE_ROOT = Path(__file__).resolve().parents[3]
_FIRST_HANDLE = 10


@dataclass(frozen=True, kw_only=True)
class StepIO:
    """Where a step's tasks read and write: file patterns, or None for srun's own files."""

    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    append: bool = False
    label: bool = False


def bootstrap(module: str) -> str:
    """Python source that runs ``module.main`` under ``python -I -S``, where nothing of ours is importable yet."""
    return f"import sys; sys.path.insert(0, {str(PACKAGE_ROOT)!r}); from {module} import main; main()"


class Launcher:
    """Everything that knows the layout of the spool directory."""

    def __init__(self, spec: FakeSpec, spool: Path, socket_path: str, bin_dir: Path, cluster_id: str) -> None:
        self._spec, self._spool, self._socket = spec, spool, socket_path
        self._bin_dir, self._cluster_id = bin_dir, cluster_id

    def marker(self, key: str = "") -> str:
        return f"{MARKER}={self._cluster_id}/{key}"

    def write_batch(self, job: Job, step: Step) -> None:
        """The batch script and its launch file."""
        request, place = job.request, step.nodes[0]
        directory = self._spool / job.run_key
        directory.mkdir(mode=0o700, exist_ok=True)
        script = directory / "slurm_script"
        script.write_text(request.script, encoding="utf-8", errors="surrogateescape")
        script.chmod(0o700)
        names = filenames.Names.of(job, place.node, self._spec)
        stdout = names.path(request.stdout, request.cwd)
        task = {
            "argv": [str(script), *request.arguments],
            "env": batch_environment(self._spec, job, str(self._bin_dir)),
            "stdin": names.path(request.stdin, request.cwd),
            "stdout": stdout,
            "stderr": names.path(request.stderr, request.cwd) if request.stderr else stdout,
            "append": request.append,
            "label": "",
        }
        self._write(place_key(job, step, place), job, [task], handles=0, cwd=request.cwd)

    def write_step(
        self, job: Job, step: Step, argv: Sequence[str], exported: Sequence[str], cwd: str, io: StepIO
    ) -> None:
        """The launch files of an srun step, one a node."""
        for index, place in enumerate(step.nodes):
            tasks = [
                self._task(job, step, place, index, local, argv, exported, cwd, io) for local in range(place.num_tasks)
            ]
            self._write(place_key(job, step, place), job, tasks, handles=3, cwd=cwd)

    def _task(
        self,
        job: Job,
        step: Step,
        place: StepNode,
        index: int,
        local: int,
        argv: Sequence[str],
        exported: Sequence[str],
        cwd: str,
        io: StepIO,
    ) -> dict[str, Any]:
        rank = place.first_rank + local
        names = filenames.Names.of(job, place.node, self._spec, step=step.name, task=rank, node_index=index)

        def target(pattern: str | None, handle: int) -> str | int:
            if pattern is not None:
                return names.path(pattern, cwd)
            # As srun does, its own input reaches the first task alone.
            return "/dev/null" if handle == 0 and rank else _FIRST_HANDLE + handle

        stdout = target(io.stdout, 1)
        return {
            "argv": list(argv),
            "env": task_environment(self._spec, job, step, place, local, exported),
            "stdin": target(io.stdin, 0),
            "stdout": stdout,
            "stderr": stdout if io.stderr is None and io.stdout is not None else target(io.stderr, 2),
            "append": io.append,
            "label": str(rank) if io.label else "",
        }

    def _write(self, key: str, job: Job, tasks: list[dict[str, Any]], *, handles: int, cwd: str) -> None:
        for task in tasks:
            task["env"][MARKER] = f"{self._cluster_id}/{key}"
        document = {
            "key": key,
            "socket": self._socket,
            "cwd": cwd,
            "umask": job.request.umask,
            "tasks": tasks,
            "handles": list(range(_FIRST_HANDLE, _FIRST_HANDLE + handles)),
        }
        path = self._spool / f"{key}.json"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(document, file)

    def spawn(self, key: str, handles: Sequence[int]) -> int:
        """Start the supervisor of a launch file; returns its process id."""
        actions: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)
        ]
        actions += [(os.POSIX_SPAWN_DUP2, fd, _FIRST_HANDLE + number) for number, fd in enumerate(handles)]
        code = bootstrap("resilient_launch.cluster.fake.stepd")
        argv = [sys.executable, "-I", "-S", "-c", code, str(self._spool / f"{key}.json")]
        name, _, value = self.marker(key).partition("=")
        return os.posix_spawn(sys.executable, argv, {name: value}, file_actions=actions, setsid=True)

    def result(self, key: str) -> dict[int, int] | None:
        """The wait statuses that a supervisor left behind; None while it has not finished."""
        try:
            document = json.loads((self._spool / f"{key}.done").read_bytes())
        except FileNotFoundError:
            return None
        return {int(index): status for index, status in document["statuses"].items()}

    def was_claimed(self, key: str) -> bool:
        """Whether a supervisor ever took this launch file."""
        return (self._spool / f"{key}.pid").exists()

    def is_alive(self, key: str) -> bool:
        """Whether the supervisor that took this launch file still runs."""
        try:
            pid, ticks = (self._spool / f"{key}.pid").read_text().split()
        except (FileNotFoundError, ValueError):
            return False
        return proctree.is_alive(int(pid), int(ticks))

    def forget(self, run_key: str) -> None:
        """Remove what a bygone run left in the spool."""
        shutil.rmtree(self._spool / run_key, ignore_errors=True)
        for path in self._spool.glob(f"{run_key}.*"):
            path.unlink(missing_ok=True)
