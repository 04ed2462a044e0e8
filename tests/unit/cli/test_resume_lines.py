"""Where a restarted worker group went on from, and the first step that came out otherwise: status and report say it."""

from __future__ import annotations

import json
import re
from html import escape

from cli_bench import CommandLine, add_attempt, make_run, set_verdict

from resilient_launch.core.events import EventWriter


def test_status_and_report_say_what_a_worker_group_went_on_from_and_what_differed(line: CommandLine) -> None:
    paths = make_run(line.root)
    number = add_attempt(paths, resume_step=0, steps=30, cause="finished")
    events = EventWriter(paths.events / f"a{number:04d}.r1.w00000.jsonl", attempt=number, restart=1, node=0, rank=0)
    events.emit("phase", phase="restore")
    events.emit(
        "resume",
        resume_step=20,
        rework_steps=10,
        world_size=2,
        slurm_restart_count=0,
        torchelastic_restart_count=1,
        last_cause="crash",
        tier="local",
        tier_why="complete on every rank",
    )
    events.emit("rework", status="differs", step=23, num_compared=7, name="loss", before=0.5, now=0.25)
    events.close()
    set_verdict(paths, "finished")
    gone_on = "attempt 0, worker group 1: went on from step 20 in the nodes' memory: complete on every rank"
    differs = "step 23 came out otherwise than before the resume in attempt 0, worker group 1: loss was 0.5 and is 0.25"
    status = line.run("status", "run").stdout
    assert gone_on in status.splitlines()
    assert f"warning: {differs}" in status.splitlines()
    report = re.sub(r"\s+", " ", line.run("report", "run").stdout)
    assert gone_on in report
    assert f"note: {differs}" in report
    page = line.root / "run.html"
    assert line.run("report", "run", "--html", str(page)).returncode == 0
    assert f"<p>{escape(gone_on)}</p>" in page.read_text()
    assert escape(differs) in page.read_text()
    row = json.loads(line.run("status", "run", "--json").stdout)["attempts"][0]
    assert row["group_resumes"][0]["tier"] == "local"
    found = json.loads(line.run("report", "run", "--json").stdout)
    assert found["rework_differences"][0]["step"] == 23
    assert found["group_resumes"] == row["group_resumes"]
