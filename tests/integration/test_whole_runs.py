"""The main job from the command line: submit, faults from the configuration, comparison with the uninterrupted run."""

from __future__ import annotations

import json
import re

from integration_bench import REPOSITORY, RunBench
from waiting import wait_for

QUICKSTART = REPOSITORY / "configs" / "quickstart.yaml"
FAULTS = "faults=[{at: {step: 15}, do: preempt}, {at: {step: 35}, do: time-limit}]"


# Enough steps after the second fault that a fast machine is not done before the limit is there.
def test_the_quickstart_comes_out_identical(bench: RunBench) -> None:
    done = bench.rlaunch(
        "submit", str(QUICKSTART), "--verify", "--set", "args=[--steps, '150']", "--set", FAULTS, timeout_s=280
    )
    assert done.returncode == 0, done.stderr + bench.trace("quickstart")
    last = done.stdout.splitlines()[-1]
    found = re.fullmatch(
        r"quickstart: identical ([0-9a-f]{64}) after 3 attempts \(preempted, time_limit, finished\)", last
    )
    assert found and found[1] == bench.digest("quickstart") == bench.digest("quickstart-reference")
    rows = bench.status("quickstart")["attempts"]
    assert [row["rework_steps"] for row in rows] == [0, 0, 0] and rows[2]["end_step"] == 150
    assert [row["resume_step"] for row in rows[1:]] == [row["end_step"] for row in rows[:2]]
    # A plain log of progress on stderr: what happened, without a terminal's control sequences.
    assert "quickstart: running, attempt 0" in done.stderr and "\x1b" not in done.stderr
    assert "fault preempt at step" in done.stderr and "fault time-limit at step" in done.stderr


def test_a_dry_run_prints_what_a_submission_submits_and_touches_nothing(bench: RunBench) -> None:
    """It needs no Slurm, and shows the script to the letter."""
    config = bench.config("run", ["--steps", "3"])
    before = sorted(bench.workdir.parent.rglob("*"))
    shown = bench.rlaunch("submit", str(config), "--dry-run", "--json", env={"PATH": "/nonexistent"})
    assert shown.returncode == 0, shown.stderr
    assert sorted(bench.workdir.parent.rglob("*")) == before
    answer = json.loads(shown.stdout)
    assert answer["schema"] == 1 and answer["config"]["name"] == "run"
    plain = bench.rlaunch("submit", str(config), "--dry-run")
    assert plain.returncode == 0 and str(bench.root / "run") in plain.stdout

    submitted = bench.rlaunch("submit", str(config), "--wait", "--json")
    assert submitted.returncode == 0, submitted.stderr + bench.trace("run")
    assert plain.stdout.endswith((bench.paths("run").submitit / "1_submission.sh").read_text() + "\n")


def test_the_snapshot_runs_although_the_source_was_edited(bench: RunBench) -> None:
    """What is in the working directory by the time an attempt starts does not matter."""
    (bench.workdir / "helper.py").write_text("WORD = 'as submitted'\n")
    (bench.workdir / "train.py").write_text(
        "import time\nfrom pathlib import Path\nimport helper\nprint(helper.WORD, flush=True)\n"
        "while not Path('go').exists():\n    time.sleep(0.05)\n"
    )
    job_id = bench.submit(bench.config("run"))
    (bench.workdir / "helper.py").write_text("WORD = 'edited'\n")
    (bench.workdir / "train.py").write_text("raise SystemExit('edited')\n")
    bench.wait_line("run", "as submitted")
    bench.slurm.requeue(job_id)
    bench.wait_attempt("run", 1)
    (bench.workdir / "go").touch()
    bench.wait("run")
    assert bench.logs("run", 1).splitlines() == ["as submitted"]


def _wait_over(bench: RunBench, job_id: str) -> None:
    """The verdict comes before the job's end, and a run whose job is live cannot be submitted again."""
    wait_for(lambda: (view := bench.slurm.show(job_id)) and view.is_over, what=f"the end of job {job_id}")


def test_a_changed_code_version_stops_a_resume_unless_allowed(bench: RunBench) -> None:
    keys = {"restart": {"max_worker_restarts": 0, "max_crashes": 0}, "fake": {"kill_wait": "60s"}}
    config = bench.config("run", ["--slow-from", "20"], **keys)
    job_id = bench.submit(config)
    bench.wait_step("run", 20)
    assert bench.rlaunch("cancel", "run").returncode == 0
    bench.wait("run", expect=103)
    _wait_over(bench, job_id)
    with (bench.workdir / "train.py").open("a") as file:
        file.write("# edited\n")
    job_id = bench.submit(config)
    bench.wait("run", expect=100)
    _wait_over(bench, job_id)
    assert "was saved by code" in bench.verdict("run")["error"]
    bench.submit(config, "--allow", "code")
    bench.wait("run")
    assert [row["cause"] for row in bench.status("run")["attempts"]] == ["cancelled", "crash", "finished"]
    assert bench.status("run")["attempts"][2]["resume_step"] >= 20
