"""What the commands print and how they exit, over runs made by hand and a Slurm of small scripts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_bench import GOOD, MAIN, CommandLine, add_attempt, job, make_run, set_verdict


def test_version(line: CommandLine) -> None:
    done = line.run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("rlaunch ") and len(done.stdout.splitlines()) == 1


def test_no_command_shows_the_commands(line: CommandLine) -> None:
    done = line.run()
    assert all(word in done.stdout + done.stderr for word in ("submit", "status", "logs", "wait", "cancel"))
    assert done.returncode in (0, 2)


# wait


@pytest.mark.parametrize(("state", "code"), [("finished", 0), ("failed", 100), ("stopped", 100), ("cancelled", 103)])
def test_wait_exits_as_the_verdict_says(line: CommandLine, state: str, code: int) -> None:
    set_verdict(make_run(line.root), state, error="ValueError: boom" if state == "failed" else "")
    done = line.run("wait", "run")
    assert (done.returncode, done.stdout) == (code, f"run: {state} (so it is)\n")
    assert ("boom" in done.stderr) == (state == "failed")


def test_wait_gives_up_on_a_run_that_goes_on(line: CommandLine) -> None:
    make_run(line.root)
    line.slurm("scontrol", job("PENDING", reason="Resources"))
    done = line.run("wait", "run", "--timeout", "0.1")
    assert (done.returncode, done.stdout) == (101, "run: queued (Resources)\n")


def test_wait_of_nobody(line: CommandLine) -> None:
    assert line.run("wait", "run").returncode == 102


@pytest.mark.parametrize(
    ("scontrol", "code"),
    [
        (job("CANCELLED"), 103),
        (job("FAILED"), 100),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", 100),
    ],
)
def test_wait_believes_slurm_where_there_is_no_verdict(line: CommandLine, scontrol: str, code: int) -> None:
    make_run(line.root, cluster="fake")
    line.slurm("scontrol", scontrol)
    assert line.run("wait", "run").returncode == code


def test_wait_lifts_the_delay_after_a_requeue_once(line: CommandLine, tmp_path: Path) -> None:
    add_attempt(make_run(line.root, cluster="fake"), resume_step=0, steps=5, cause="preempted")
    say = job("PENDING", restarts=1, reason="BeginTime")
    line.slurm("scontrol", f'case "$1" in update) echo "$@" >>{tmp_path}/asked;; *) {say};; esac')
    assert line.run("wait", "run", "--timeout", "2").returncode == 101
    assert (tmp_path / "asked").read_text() == "update JobId=7 StartTime=now+2\n"


@pytest.mark.parametrize("command", ["wait", "logs"])
def test_an_interrupt_ends_a_follower_with_130(line: CommandLine, command: str) -> None:
    make_run(line.root)
    line.slurm("scontrol", job("PENDING", reason="Resources"))
    arguments = [command, "run", *(["-f"] if command == "logs" else [])]
    process = subprocess.Popen(
        [sys.executable, "-c", f"print('up', flush=True)\n{MAIN}", *arguments],
        env={**os.environ, "PATH": str(line.bin), "RLAUNCH_ROOT": str(line.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "up\n"
    if command == "wait":
        assert process.stderr.readline() == "run: queued\n"
    else:
        _wait_until_asleep(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors


def _wait_until_asleep(pid: int) -> None:
    """Until the process waits in a sleep: it is beyond its imports."""
    deadline = time.monotonic() + 60
    while "nanosleep" not in Path(f"/proc/{pid}/wchan").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)


# status


def test_status_of_one_run(line: CommandLine) -> None:
    paths = make_run(line.root)
    add_attempt(paths, resume_step=0, steps=30, cause="preempted")
    add_attempt(paths, resume_step=30, steps=20, cause=None, restart=1)
    (paths.checkpoints / "step-00000030.a0000.r0").mkdir()
    (paths.checkpoints / "step-00000030.a0000.r0/MANIFEST.json").touch()
    line.slurm("scontrol", job("RUNNING", restarts=1))
    done = line.run("status", "run")
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0]) == (0, "run: running, job 7")
    assert lines[1].startswith("step 50") and lines[2].startswith("newest checkpoint: step 30, ")
    assert lines[3].split() == ["attempt", "job", "restarts", "in-job", "cause", "resume", "end", "rework", "seconds"]
    assert lines[4].split()[:8] == ["0", "7", "0", "0", "preempted", "0", "30", "0"]
    assert lines[5].split()[:8] == ["1", "7", "1", "0", "-", "30", "50", "0"]


def test_status_json_is_one_object_with_a_schema(line: CommandLine) -> None:
    paths = make_run(line.root)
    add_attempt(paths, resume_step=0, steps=30, cause="finished")
    set_verdict(paths, "finished")
    done = line.run("status", "run", "--json")
    answer = json.loads(done.stdout)
    assert set(answer) == {
        "schema",
        "name",
        "state",
        "reason",
        "job_id",
        "job_state",
        "step",
        "steps_per_s",
        "until_step",
        "eta_s",
        "starts_at",
        "explanation",
        "checkpoint_step",
        "checkpoint_age_s",
        "error",
        "attempts",
    }
    assert set(answer["attempts"][0]) == {
        "number",
        "job_id",
        "slurm_restart_count",
        "torchelastic_restart_count",
        "cause",
        "resume_step",
        "end_step",
        "rework_steps",
        "seconds",
        "nodes",
        "phase",
        "why",
        "claimed_at",
        "step_s",
        "until_step",
        "group_resumes",
        "differences",
    }
    everything = json.loads(line.run("status", "--json").stdout)
    assert everything["schema"] == 1 and everything["runs"] == [answer | {"checkpoint_age_s": None}]


def test_status_lists_all_runs_or_says_there_are_none(line: CommandLine) -> None:
    done = line.run("status")
    assert (done.returncode, done.stdout) == (0, "") and "no runs in" in done.stderr
    assert json.loads(line.run("status", "--json").stdout) == {"schema": 1, "runs": [], "silent": []}
    set_verdict(make_run(line.root, "b"), "finished")
    set_verdict(make_run(line.root, "a"), "failed")
    (line.root / "not-a-run").mkdir()
    rows = [row.split() for row in line.run("status").stdout.splitlines()]
    assert rows[0] == ["run", "job", "state", "step", "steps/s", "left", "saved", "attempts", "reason"]
    assert [row[:3] for row in rows[1:]] == [["a", "7", "failed"], ["b", "7", "finished"]]


def test_status_lists_the_good_runs_beside_a_damaged_one(line: CommandLine) -> None:
    set_verdict(make_run(line.root, "good"), "finished")
    make_run(line.root, "bad").run.write_text("{")
    done = line.run("status")
    assert (done.returncode, done.stdout.split()[9:12]) == (1, ["good", "7", "finished"])
    assert done.stderr.startswith(f"error: {line.root / 'bad' / 'run.json'}: ") and "Traceback" not in done.stderr


def test_status_works_without_slurm(line: CommandLine) -> None:
    add_attempt(make_run(line.root), resume_step=0, steps=30, cause=None)
    done = line.run("status", "run")
    assert done.returncode == 0 and "what the files say" in done.stdout and "step 30" in done.stdout


def test_the_shell_is_told_the_names_of_runs(line: CommandLine) -> None:
    for name in ("llm-7b", "llm-70b", "other"):
        make_run(line.root, name)
    for words in ("rlaunch logs llm", "rlaunch status llm", "rlaunch report other llm"):
        env = {"_RLAUNCH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        program = (
            "import sys; sys.argv[0] = 'rlaunch'\nfrom resilient_launch.cli.main import app; app(prog_name='rlaunch')"
        )
        done = line.run(env=env, program=program)
        assert done.stdout.split() == ["llm-70b", "llm-7b"], (words, done.stderr)


# logs


def _log(paths: object, attempt: int, rank: int, text: bytes) -> None:
    directory = paths.attempt_logs(attempt)  # type: ignore[attr-defined]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"n1.{rank}.log").write_bytes(text)


def test_logs_are_shown_by_attempt_and_rank(line: CommandLine) -> None:
    paths = make_run(line.root)
    _log(paths, 0, 0, b"zero\n")
    _log(paths, 0, 10, b"ten\n")
    _log(paths, 0, 2, b"two\nhalf")
    _log(paths, 1, 0, b"again \xff\n")
    done = line.run("logs", "run")
    assert done.stdout.splitlines() == [
        "0000/n1.0: zero",
        "0000/n1.2: two",
        "0000/n1.2: half",
        "0000/n1.10: ten",
        "0001/n1.0: again �",
    ]
    assert line.run("logs", "run", "--attempt", "1").stdout == "0001/n1.0: again �\n"
    assert line.run("logs", "run", "--rank", "2").stdout.splitlines() == ["0000/n1.2: two", "0000/n1.2: half"]
    assert line.run("logs", "run", "--rank", "0", "--attempt", "0").stdout == "0000/n1.0: zero\n"
    assert line.run("logs", "run", "--attempt", "7").stdout == ""


def test_logs_are_searched(line: CommandLine) -> None:
    paths = make_run(line.root)
    _log(paths, 0, 0, b"loss 1.5\nnan here\n")
    _log(paths, 1, 3, b"Loss 12.5\n")
    assert line.run("logs", "run", "--grep", "(?i)loss 1.*5$").stdout.splitlines() == [
        "0000/n1.0: loss 1.5",
        "0001/n1.3: Loss 12.5",
    ]
    wrong = line.run("logs", "run", "--grep", "(")
    assert wrong.returncode == 2 and "regular expression" in wrong.stderr


def test_a_log_that_is_rotated_is_followed_into_the_new_file(line: CommandLine) -> None:
    paths = make_run(line.root)
    _log(paths, 0, 0, b"a long first line\n")
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "logs", "run", "-f"],
        env={**os.environ, "PATH": str(line.bin), "RLAUNCH_ROOT": str(line.root), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "0000/n1.0: a long first line\n"
    log = paths.attempt_logs(0) / "n1.0.log"
    log.rename(log.with_suffix(".log.1"))
    log.write_bytes(b"a new file, longer than the old one was\n")
    assert process.stdout.readline() == "0000/n1.0: a new file, longer than the old one was\n"
    log.write_bytes(b"cut\n")
    assert process.stdout.readline() == "0000/n1.0: cut\n"
    set_verdict(paths, "finished")
    process.communicate(timeout=60)


def test_logs_follow_a_run_to_its_end(line: CommandLine) -> None:
    paths = make_run(line.root)
    _log(paths, 0, 0, b"one\ntwo, not comp")
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "logs", "run", "-f"],
        env={**os.environ, "PATH": str(line.bin), "RLAUNCH_ROOT": str(line.root), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "0000/n1.0: one\n"
    with (paths.attempt_logs(0) / "n1.0.log").open("ab") as file:
        file.write(b"lete\nthree")
    assert process.stdout.readline() == "0000/n1.0: two, not complete\n"
    _log(paths, 1, 0, b"next\n")
    assert process.stdout.readline() == "0001/n1.0: next\n"
    set_verdict(paths, "finished")
    rest, _ = process.communicate(timeout=60)
    assert (rest, process.returncode) == ("0000/n1.0: three\n", 0)


def test_a_reader_that_leaves_early_gets_no_complaint(line: CommandLine) -> None:
    _log(make_run(line.root), 0, 0, b"line\n" * 200_000)
    command = f'{sys.executable} -c "$0" logs run | head -1'
    env = {**os.environ, "RLAUNCH_ROOT": str(line.root)}
    done = subprocess.run(["bash", "-c", command, MAIN], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0000/n1.0: line\n", "")


# cancel


def test_cancel_ends_the_newest_job(line: CommandLine, tmp_path: Path) -> None:
    make_run(line.root, jobs=("7", "9"))
    line.slurm("scancel", f'echo "$@" >>{tmp_path}/asked')
    done = line.run("cancel", "run")
    assert (done.returncode, done.stdout) == (0, "cancelled job 9 of run\n")
    assert (tmp_path / "asked").read_text() == "9\n"


def test_cancel_of_a_run_that_is_over_says_so(line: CommandLine) -> None:
    set_verdict(make_run(line.root), "failed")
    done = line.run("cancel", "run")
    assert (done.returncode, done.stdout) == (0, "run is over already: failed\n")


def test_cancel_of_a_run_without_a_job_says_so(line: CommandLine) -> None:
    """A submission that was cut off between its directory and its job."""
    make_run(line.root, jobs=())
    done = line.run("cancel", "run")
    assert done.returncode == 1 and "no job" in done.stderr and "Traceback" not in done.stderr


# submit


def test_submit_prints_the_id_alone_where_asked(line: CommandLine) -> None:
    line.slurm("sbatch", "echo 'Submitted batch job 41'")
    line.slurm("squeue", "exit 0")
    done = line.run("submit", line.config(), "--parsable")
    assert (done.returncode, done.stdout, done.stderr) == (0, "41\n", "")
    again = line.run("submit", line.config(), "--json")
    answer = json.loads(again.stdout)
    assert answer == {"schema": 1, "name": "run", "job_id": "41", "directory": str(line.root / "run")}
    plain = line.run("submit", line.config("name: other\nscript: train.py\n"))
    assert plain.stdout == f"submitted other as job 41 in {line.root / 'other'}\n"
    assert plain.stderr == "next: rlaunch status other\n"
    assert json.loads((line.root / "run" / "run.json").read_text())["jobs"] == ["41", "41"]


def test_two_submissions_at_once_make_one_job(line: CommandLine, tmp_path: Path) -> None:
    """The second is refused while the first one is at it."""
    line.slurm("sbatch", f"touch {tmp_path}/asked; read line <{tmp_path}/go; echo 'Submitted batch job 41'")
    os.mkfifo(tmp_path / "go")
    path = line.config()
    first = subprocess.Popen(
        [sys.executable, "-c", MAIN, "submit", path, "--parsable"],
        env={**os.environ, "PATH": f"{line.bin}:{os.environ['PATH']}", "RLAUNCH_ROOT": str(line.root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "asked").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    second = line.run("submit", path)
    (tmp_path / "go").write_text("\n")
    assert first.communicate(timeout=60)[0] == "41\n" and first.returncode == 0
    assert second.returncode == 1 and "is being submitted by another process" in second.stderr
    assert (line.root / "run" / "run.json").exists()


def test_a_dry_run_shows_configuration_and_script(line: CommandLine) -> None:
    path = line.config(GOOD)
    before = line.tree()
    done = line.run("submit", path, "--dry-run", "--set", "nodes=3", "--json")
    answer = json.loads(done.stdout)
    assert answer["config"]["nodes"] == 3 and "#SBATCH --nodes=3" in answer["sbatch_script"]
    assert answer["run_directory"] == str(line.root / "run") and line.tree() == before


def test_an_odd_time_limit_is_noted(line: CommandLine) -> None:
    line.slurm("sbatch", "echo 'Submitted batch job 41'")
    done = line.run("submit", line.config("name: run\nscript: train.py\ntime: 10m30s\n"), "--parsable")
    assert done.stdout == "41\n" and "note: time: Slurm counts whole minutes" in done.stderr


@pytest.mark.parametrize(
    ("verdict", "state", "is_live"),
    [
        (None, "RUNNING", True),
        (None, "PENDING", True),
        (None, "COMPLETING", True),
        ("cancelled", "RUNNING", True),
        # Its agents have had their last word; what is left of the job only leaves.
        ("cancelled", "COMPLETING", False),
        ("cancelled", "CANCELLED", False),
        (None, "FAILED", False),
    ],
)
def test_a_live_run_is_not_submitted_again(line: CommandLine, verdict: str | None, state: str, is_live: bool) -> None:
    paths = make_run(line.root)
    if verdict is not None:
        set_verdict(paths, verdict)
    row = f"7|{state}|None|1|1|Unknown|10:00|1|low|a|n1|n1|run"
    line.slurm("squeue", f"echo '{row}'")
    line.slurm("sbatch", "echo 'Submitted batch job 8'")
    done = line.run("submit", line.config(), "--parsable")
    if is_live:
        assert (done.returncode, done.stdout) == (1, "") and f"is live: job 7 is {state.lower()}" in done.stderr
        assert "Traceback" not in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "8\n") and not paths.verdict.exists()
