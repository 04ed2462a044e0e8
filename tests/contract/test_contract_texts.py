"""What the commands print, and how they exit, where rlaunch, submitit or a user's script would look."""

from __future__ import annotations

import pytest
from slurm_bench import Bench

_UNKNOWN_TWICE = "Invalid job id specified for job 987654\nslurm_suspend error: Invalid job id specified\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[1-2],gpu-[009-011]", ["n1", "n2", "gpu-009", "gpu-010", "gpu-011"]),
        ("rack[1-2]node[1-2]", ["rack1node1", "rack1node2", "rack2node1", "rack2node2"]),
    ],
)
def test_host_lists_expand(bench: Bench, text: str, names: list[str]) -> None:
    assert bench.run("scontrol", "show", "hostnames", text).stdout.split() == names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("n1,n2,n3,n7", "n[1-3,7]"),
        ("gpu-009,gpu-010,login", "gpu-[009-010],login"),
        ("n9,n10", "n[9-10]"),
    ],
)
def test_host_lists_fold(bench: Bench, names: str, text: str) -> None:
    assert bench.run("scontrol", "show", "hostlistsorted", names).stdout == f"{text}\n"


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("squeue -h -j 987654", 1, "slurm_load_jobs error: Invalid job id specified\n"),
        ("squeue -h -j 987654,987655", 0, ""),
        ("scontrol show job 987654", 1, "slurm_load_jobs error: Invalid job id specified\n"),
        ("scontrol show node n99", 1, "Node n99 not found\n"),
        ("scontrol show partition nope", 1, "Partition nope not found\n"),
        ("scontrol release 987654", 1, _UNKNOWN_TWICE),
        ("scancel 987654", 0, ""),
        ("scancel --signal=USR1 987654", 1, None),
        ("scancel", 1, "scancel: error: No job identification provided\n"),
        ("sacct -j 987654", 1, "Slurm accounting storage is disabled\n"),
        ("sbatch --wrap=true --time=0-x", 255, None),
        ("sbatch --wrap=true --signal=NOPE@5", 255, None),
        ("sbatch /no/such/script", 1, "sbatch: error: Unable to open file /no/such/script\n"),
        ("scontrol ping", 0, None),
    ],
)
def test_a_question_without_a_good_answer(bench: Bench, command: str, code: int, said: str | None) -> None:
    done = bench.run(*command.split())
    assert done.returncode == code, done.stdout + done.stderr
    if said is not None:
        assert done.stdout + done.stderr == said


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("", "sbatch: error: Batch script is empty!\n"),
        (" \n", "sbatch: error: Batch script contains only whitespace!\n"),
        (
            "echo hello\n",
            "sbatch: error: This does not look like a batch script.  The first\n"
            "sbatch: error: line must start with #! followed by the path to an interpreter.\n"
            "sbatch: error: For instance: #!/bin/sh\n",
        ),
        (
            "#!/bin/sh\r\ntrue\r\n",
            "sbatch: error: Batch script contains DOS line breaks (\\r\\n)\n"
            "sbatch: error: instead of expected UNIX line breaks (\\n).\n",
        ),
    ],
)
def test_a_script_that_is_none_is_refused(bench: Bench, script: str, said: str) -> None:
    path = bench.directory / "bad.sh"
    path.write_bytes(script.encode())
    done = bench.run("sbatch", str(path))
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_the_command_line_wins_over_the_environment_and_that_over_the_script(bench: Bench) -> None:
    path = bench.directory / "options.sh"
    path.write_text("#!/bin/sh\n#SBATCH --job-name=script --time=9 --comment=script\ntrue\n")
    env = {"SBATCH_JOB_NAME": "environment", "SBATCH_TIMELIMIT": "8"}
    words = [f"{name}={value}" for name, value in env.items()]
    done = bench.run("env", *words, "sbatch", "--parsable", "--hold", "--job-name=line", "-o", "/dev/null", str(path))
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    bench.jobs.append(job_id)
    view = bench.show(job_id)
    assert (view.name, view.time_limit_s, view.comment) == ("line", 480, "script")


def test_the_states_and_columns_of_squeue(bench: Bench) -> None:
    running = bench.sbatch("sleep 600", "--nodes=2", "--job-name=runs", "--time=1:30:00")
    waiting = bench.sbatch("true", "--begin=now+1hour", "--job-name=waits", "--time=2-00:00:00")
    bench.wait_state(running, "RUNNING")
    form = "%i|%j|%u|%P|%T|%t|%D|%R|%l|%r"
    done = bench.run("squeue", "-h", "-j", f"{running},{waiting}", "-o", form)
    rows = dict(line.split("|", 1) for line in done.stdout.splitlines())
    nodes = bench.show(running).nodes
    assert rows == {
        running: f"runs|root|low|RUNNING|R|2|{nodes}|1:30:00|None",
        waiting: "waits|root|low|PENDING|PD|1|(BeginTime)|2-00:00:00|BeginTime",
    }
    assert bench.run("squeue", "-h", "-t", "PD", "-j", f"{running},{waiting}", "-o", "%i").stdout.split() == [waiting]
    assert bench.run("squeue", "-h", "-j", waiting, "-O", "jobid:12,statecompact:4").stdout == f"{waiting:12}PD  \n"


def test_a_time_limit_that_is_changed(bench: Bench) -> None:
    job_id = bench.sbatch("sleep 600", "--time=10")
    bench.wait_state(job_id, "RUNNING")
    assert bench.run("scontrol", "update", f"jobid={job_id}", "timelimit=5").returncode == 0
    view = bench.show(job_id)
    assert view.start_time is not None and (view.time_limit_s, view.end_time) == (300, view.start_time + 300)
    refused = bench.run("scontrol", "update", f"jobid={job_id}", "timelimit=x")
    assert refused.returncode == 1
    assert bench.show(job_id).time_limit_s == 300


def test_the_nodes_in_sinfo(bench: Bench) -> None:
    job_id = bench.sbatch("sleep 600", "--nodelist=n1", "--exclusive")
    bench.wait_state(job_id, "RUNNING")
    done = bench.run("sinfo", "-h", "-N", "-p", "low", "-o", "%N|%T|%c|%G")
    rows = [line.strip().split("|") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["n1", "n2", "n3", "n4"]
    assert [row[1].rstrip("-") for row in rows] == ["allocated", "idle", "idle", "idle"]
    assert {(row[2], row[3]) for row in rows} == {("4", "gpu:2")}
