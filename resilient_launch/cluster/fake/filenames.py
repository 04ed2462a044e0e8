"""Replacement symbols in the names of output files: %j %A %a %J %s %N %n %t %u %x %%."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from resilient_launch.cluster.fake.model import Job
from resilient_launch.cluster.fake.spec import FakeSpec
from resilient_launch.cluster.fake.users import user_name

_SYMBOL = re.compile(r"%(\d*)([%AaJjNnstux])")
_NO_ARRAY_TASK = 4294967294


@dataclass(frozen=True, kw_only=True)
class Names:
    """What the symbols stand for in one task of one step."""

    job_id: int
    job_name: str
    user: str
    node: str
    node_index: int
    task: int
    step: str
    array_id: int
    array_task: int

    @classmethod
    def of(
        cls, job: Job, node: str, spec: FakeSpec, *, step: str = "batch", task: int = 0, node_index: int = 0
    ) -> Names:
        return cls(
            job_id=job.job_id,
            job_name=job.request.name,
            user=user_name(job.request.uid),
            node=node,
            node_index=node_index,
            task=task,
            step=step,
            array_id=job.job_id if job.array is None else job.array.array_id,
            array_task=_NO_ARRAY_TASK if job.array is None else job.array.index,
        )

    def path(self, pattern: str, directory: str) -> str:
        """The absolute file name for a pattern; a backslash in the pattern turns every symbol off."""
        filled = pattern.replace("\\", "") if "\\" in pattern else _SYMBOL.sub(self._value, pattern)
        return str(Path(directory) / filled)

    def _value(self, match: re.Match[str]) -> str:
        width, symbol = match.groups()
        numbers = {
            "j": self.job_id,
            "A": self.array_id,
            "a": self.array_task,
            "n": self.node_index,
            "t": self.task,
        }
        if symbol in numbers:
            return str(numbers[symbol]).zfill(min(int(width), 10) if width else 0)
        texts = {
            "%": "%",
            "J": str(self.job_id) if self.step == "batch" else f"{self.job_id}.{self.step}",
            "s": self.step,
            "N": self.node,
            "u": self.user,
            "x": self.job_name,
        }
        return texts[symbol]
