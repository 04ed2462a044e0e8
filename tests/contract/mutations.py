"""Breaks a copy of the fake on purpose and names the tests that notice: python -m tests.contract.mutations.

Exits with 1 where a mutation gets through.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("resilient_launch", "tests", "slurm", "pyproject.toml")
_SELECTION = "(grace or preempt) and fake and not 24.11 and not accounting"
_FAILED = re.compile(r"^FAILED \S+::(\S+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """``old`` becomes ``new`` in ``file``, where it stands once."""

    name: str
    file: str
    old: str
    new: str


_LIFECYCLE = "resilient_launch/cluster/fake/lifecycle.py"
MUTATIONS = (
    Mutation(
        name="TERM to the batch shell at the start of grace",
        file=_LIFECYCLE,
        old="            self.orders.signal_steps(job, signal.SIGCONT)\n",
        new="            self.orders.signal_steps(job, signal.SIGCONT)\n"
        "            self.orders.signal_batch(job, signal.SIGTERM)\n",
    ),
    Mutation(
        name="an exit within the grace window is always requeued",
        file=_LIFECYCLE,
        old="if job.requeue_owed:",
        new="if job.preempt or job.requeue_owed:",
    ),
)


def failures(mutation: Mutation) -> list[str]:
    """Names of the contract's tests that fail on a fake with ``mutation``."""
    with tempfile.TemporaryDirectory(prefix="rlaunch-mutation-") as scratch:
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, Path(scratch) / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, Path(scratch) / name)
        path = Path(scratch) / mutation.file
        text = path.read_text()
        if text.count(mutation.old) != 1:
            raise SystemExit(f"{mutation.name}: {mutation.file} no longer holds what is to be changed, once")
        path.write_text(text.replace(mutation.old, mutation.new))
        # Started there, so that the copy is what is imported.
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract", "-k", _SELECTION],
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if done.returncode not in (0, 1):
            raise SystemExit(f"{mutation.name}: the tests did not run\n{done.stdout}{done.stderr}")
        return _FAILED.findall(done.stdout)


def main() -> int:
    undetected = 0
    for mutation in MUTATIONS:
        names = failures(mutation)
        undetected += not names
        print(f"{mutation.name}: {'noticed by' if names else 'NOT NOTICED'}")
        for name in names:
            print(f"  {name}")
    return 1 if undetected else 0


if __name__ == "__main__":
    sys.exit(main())
