"""One run that is told to leave while it evaluates (told thrice), restores, and saves: each time at no cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from integration_bench import RunBench, wait_for

SLOW_DATA = '''
class Slow(rl.ResumableSampler):
    """In the second attempt its position takes long to load, in the third, at step 60, to save."""

    def load_state_dict(self, state):
        pause(run_of["run"], "restoring", attempt=1)
        super().load_state_dict(state)

    def state_dict(self):
        if progress["step"] == 60:
            pause(run_of["run"], "saving", attempt=2)
        return super().state_dict()


run_of, progress = {}, {"step": -1}


def pause(run, what, attempt):
    if run.attempt == attempt and run.rank == 0:
        print(what, flush=True)
        while not Path(os.environ["PLACE"], f"go.{what}").exists():
            time.sleep(0.02)


def main():'''


def _make_slow(bench: RunBench) -> None:
    script = bench.workdir / "train.py"
    text = script.read_text()
    for old, new in (
        ("def main():", SLOW_DATA),
        ("rl.ResumableSampler(len(", "Slow(len("),
        ("        run.seed(5)\n", "        run_of['run'] = run\n        run.seed(5)\n"),
        (
            "            optimizer.step()\n",
            "            optimizer.step()\n            progress['step'] = step + 1\n"
            "            if step == 20:\n                with run.phase():\n"
            "                    pause(run, 'evaluating', attempt=0)\n",
        ),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    script.write_text(text)


def _tell(bench: RunBench, job_id: str, what: str, attempt: int, signals: list[str]) -> None:
    """Once the run is in the middle of ``what``, have Slurm signal it, and let it go on when it has heard."""
    bench.wait_line("run", what, attempt)
    for number, name in enumerate(signals, start=1):
        bench.slurm_run("scancel", f"--signal={name}", job_id)
        wait_for(lambda number=number: len(_heard(bench, attempt)) >= min(number, 1), what=f"a notice {what}")
    # Nobody steps until then, so that it is at the first boundaries whatever the agreement takes.
    wait_for(lambda: _has_agreed(bench, attempt), what=f"an agreement {what}")
    (bench.root / f"go.{what}").touch()


def _has_agreed(bench: RunBench, attempt: int) -> bool:
    found = [event["status"] for event in bench.events("run", "agreement") if event["attempt"] == attempt]
    return not {"final", "unstarted"}.isdisjoint(found)


def _heard(bench: RunBench, attempt: int) -> list[str]:
    return [event["source"] for event in bench.events("run", "notice") if event["attempt"] == attempt]


@pytest.mark.slow
def test_a_signal_at_an_awkward_moment_costs_no_step(bench: RunBench, reference: Callable[[int], str]) -> None:
    _make_slow(bench)
    config = bench.config("run", workers_per_node=2, env={"PLACE": str(bench.root)}, checkpoint={"every": "20 steps"})
    job_id = bench.submit(config)
    _tell(bench, job_id, "evaluating", 0, ["USR1", "USR1", "TERM"])
    _tell(bench, job_id, "restoring", 1, ["USR1"])
    _tell(bench, job_id, "saving", 2, ["USR2"])
    bench.wait("run")
    rows = bench.status("run")["attempts"]
    assert [row["cause"] for row in rows] == ["yielded", "yielded", "yielded", "finished"]
    assert [row["rework_steps"] for row in rows] == [0, 0, 0, 0]
    # Out of the evaluation the gang went to one more boundary; a restore and a save were ended, not torn.
    assert (rows[0]["end_step"], rows[2]["end_step"]) == (rows[1]["resume_step"], rows[3]["resume_step"])
    assert 21 <= rows[0]["end_step"] <= 25
    assert 60 <= rows[2]["end_step"] <= 65
    assert bench.digest("run") == reference(2)
