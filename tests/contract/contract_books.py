"""Jobs that end in every way, side by side, and what accounting then says of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slurm_bench import Bench
from waiting import wait_for

_STAYS = 'if [ -n "$SLURM_RESTART_COUNT" ]; then exit 0; fi\ntrap "" TERM; echo up; sleep 600 & wait'
_STEP_STAYS = "trap '' TERM; srun bash -c 'trap \"\" TERM; echo up; sleep 600' & wait; sleep 600"
"""Ends by KILL alone, batch script and step."""
_OVER = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "PREEMPTED")


class Books:
    """``jobs`` are the ids by what became of them: each has its ending when the object is there.

    Six nodes: n1 for what starts and ends by itself, the others for one job each that something happens to.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.jobs: dict[str, str] = {}
        self._own_ends()
        for happen in (self._cancel, self._requeue, self._preempt, self._leave_in_grace, self._lose_nodes):
            happen()
        for name in ("timed out", "timed out at ease"):
            bench.wait_state(self.jobs[name], "TIMEOUT", timeout_s=180)
        final = [job_id for name, job_id in self.jobs.items() if name not in ("running", "waiting")]
        wait_for(lambda: all(self._is_settled(job_id) for job_id in final), what="accounting to know every end")

    def rows(self, name: str, fields: str, *options: str) -> list[list[str]]:
        """What sacct says of the job, split into its columns."""
        words = ("sacct", "--noheader", "--parsable2", f"--format={fields}", f"--jobs={self.jobs[name]}", *options)
        done = self.bench.run(*words)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return [line.split("|") for line in done.stdout.splitlines()]

    def _is_settled(self, job_id: str) -> bool:
        done = self.bench.run("sacct", "-n", "-P", "-o", "State,End", "-j", job_id)
        rows = [line.split("|") for line in done.stdout.splitlines()]
        return bool(rows) and all(row[0].split(" ")[0] in _OVER and row[1] != "Unknown" for row in rows)

    def _submit(self, name: str, script: str, *options: str) -> str:
        job_id = self.jobs[name] = self.bench.sbatch(script, *options)
        return job_id

    def _own_ends(self) -> None:
        here = ("--nodelist=n1", "--time=10")
        self._submit("timed out", _STEP_STAYS, "--nodelist=n1", "--time=1")
        self._submit("timed out at ease", "trap 'exit 0' TERM; sleep 600 & wait", "--nodelist=n1", "--time=1")
        self._submit("running", "srun sleep 600", *here)
        self._submit("waiting", "true", "--begin=now+1hour")
        self._submit("completed", "srun true\nexit 0", *here)
        self._submit("failed", "exit 5", *here)
        self._submit("step failed", "srun bash -c 'exit 3'\nsrun true\nexit 0", *here)
        self._submit("killed", "srun bash -c 'kill -9 $$'\nkill -9 $$", *here)
        self._submit("array", "exit $SLURM_ARRAY_TASK_ID", "--array=0-1", "--output=/dev/null", *here)
        self._submit("two nodes", "srun true", "--nodelist=n[5-6]", "--time=10", "--job-name=pair")
        self.bench.slurm.cancel(self._submit("cancelled waiting", "true", "--begin=now+1hour"))
        for name in ("completed", "failed", "step failed", "killed", "two nodes"):
            self.bench.wait_state(self.jobs[name], "COMPLETED", "FAILED")
        self._submit("again", "true", *here)
        self.bench.wait_state(self.jobs["again"], "COMPLETED")
        self._comes_back(self.jobs["again"], lambda: self.bench.slurm.requeue(self.jobs["again"]))

    def _cancel(self) -> None:
        job_id = self._submit("cancelled", _STEP_STAYS, "--nodelist=n2")
        self.bench.wait_line(job_id, "up")
        self.bench.slurm.cancel(job_id)

    def _requeue(self) -> None:
        job_id = self._submit("requeued", _STAYS, "--nodelist=n2")
        self.bench.wait_line(job_id, "up")
        self._comes_back(job_id, lambda: self.bench.slurm.requeue(job_id))

    def _preempt(self) -> None:
        options = ("--nodelist=n3", "--exclusive")
        job_id = self._submit("preempted", _STAYS, "--partition=nograce", *options)
        self.bench.wait_line(job_id, "up")
        high = self.bench.sbatch("true", "--partition=high", *options)
        self.bench.wait_state(job_id, "PENDING")
        self.bench.wait_state(high, "COMPLETED")
        self._comes_back(job_id, lambda: None)

    def _leave_in_grace(self) -> None:
        options = ("--nodelist=n4", "--exclusive")
        script = _STAYS.replace("sleep 600 & wait", "until [ -e go ]; do sleep 0.1; done")
        job_id = self._submit("left in grace", script, *options)
        self.bench.wait_line(job_id, "up")
        high = self.bench.sbatch("true", "--partition=high", *options)
        wait_for(lambda: self.bench.show(job_id).preempt_time, what="the preemption")
        (self.bench.directory / "go").touch()
        self.bench.wait_state(job_id, "COMPLETED", "PENDING")
        self.bench.wait_state(high, "COMPLETED")
        if self.bench.version != "22.05":
            self._comes_back(job_id, lambda: None)

    def _lose_nodes(self) -> None:
        script = 'if [ -n "$SLURM_RESTART_COUNT" ]; then exit 0; fi\necho $$ >lost.pid; echo up; sleep 600 & wait'
        lost = self._submit("node lost", script, "--nodelist=n5")
        for_good = self._submit("node lost for good", _STEP_STAYS, "--nodelist=n6", "--no-requeue")
        for job_id in (lost, for_good):
            self.bench.wait_line(job_id, "up")
        self.bench.run("scontrol", "update", "nodename=n[5-6]", "state=down", "reason=test")
        self.bench.wait_state(for_good, "NODE_FAIL")
        self.bench.wait_state(lost, "PENDING")
        self.bench.run("scontrol", "update", "nodename=n[5-6]", "state=resume")
        # A node where the old run still lives does not take the next one.
        old = Path("/proc") / (self.bench.directory / "lost.pid").read_text().strip()
        wait_for(lambda: not old.exists(), what="the lost run to end")
        self._comes_back(lost, lambda: None)

    def _comes_back(self, job_id: str, requeue: Callable[[], object]) -> None:
        requeue()
        self.bench.wait_state(job_id, "PENDING")
        self.bench.slurm.start_now(job_id)
        self.bench.wait_state(job_id, "COMPLETED")
