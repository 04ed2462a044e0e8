"""What the commands accept, refuse and print."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest
from fake_lab import Lab, wait_for

SCRIPT = "#!/bin/sh\ntrue\n"


def write(lab: Lab, text: str, name: str = "job.sh") -> str:
    (lab.work / name).write_bytes(text.encode())
    return name


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--foo=1"], 255, "sbatch: unrecognized option '--foo=1'\nTry \"sbatch --help\" for more information\n"),
        (["-N", "abc"], 255, 'sbatch: error: "abc" is not a valid node count\n'),
        (["-N", "3-2"], 255, "sbatch: error: Maximum node count 2 is less than minimum node count 3\n"),
        (["-n", "0"], 1, 'sbatch: error: Invalid numeric value "0" for --ntasks.\n'),
        (["-t", "abc"], 255, "sbatch: error: Invalid --time specification\n"),
        (["--signal=FOO@3"], 255, "sbatch: error: Invalid --signal specification\n"),
        (["--mem=1.5G"], 255, "sbatch: error: Invalid --mem specification\n"),
        (["--open-mode=x"], 255, "sbatch: error: Invalid --open-mode specification\n"),
        (["-p", "none"], 1, "Invalid partition name specified\n"),
        (
            ["-c", "99"],
            1,
            "sbatch: error: Batch job submission failed: Requested node configuration is not available\n",
        ),
        (["--gres=gpu:1"], 1, "Requested node configuration is not available\n"),
        (["-w", "n9"], 1, "Invalid node name specified\n"),
        (["-d", "afterok:x"], 1, "Job dependency problem\n"),
    ],
)
def test_sbatch_refusals(idle_lab: Lab, words: list[str], code: int, text: str) -> None:
    done = idle_lab.run("sbatch", *words, write(idle_lab, SCRIPT), code=code)
    assert done.stderr.endswith(text)
    assert done.stdout == ""
    assert idle_lab.run("squeue", "-h", "-t", "all").stdout == ""


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("", "sbatch: error: Batch script is empty!\n"),
        ("echo\n", "line must start with #! followed by the path to an interpreter.\n"),
        ("#!/bin/sh\r\necho\r\n", "instead of expected UNIX line breaks (\\n).\n"),
        ("#!/bin/sh\n\0", "contain a NULL character '\\0'.\n"),
    ],
)
def test_bad_scripts(idle_lab: Lab, script: str, text: str) -> None:
    assert text in idle_lab.run("sbatch", write(idle_lab, script), code=1).stderr


def test_a_missing_script_and_an_option_that_slurm_does_not_know_inside_one(idle_lab: Lab) -> None:
    assert idle_lab.run("sbatch", "none.sh", code=1).stderr == "sbatch: error: Unable to open file none.sh\n"
    name = write(idle_lab, "#!/bin/sh\n#SBATCH --foo=3\n")
    assert "unrecognized option '--foo=3'" in idle_lab.run("sbatch", name, code=255).stderr


def test_a_script_from_standard_input_and_one_from_a_pipe(lab: Lab) -> None:
    environment = {**os.environ, **lab.cluster.env()}
    for words in ("echo '#!/bin/sh\n echo piped >> out' | sbatch", "sbatch <(echo '#!/bin/sh\n echo piped >> out')"):
        subprocess.run(["bash", "-c", words], env=environment, cwd=lab.work, check=True, capture_output=True)
    lab.wait_text("out", "piped", 2)


def test_submission_prints_as_slurm_does(lab: Lab) -> None:
    name = write(lab, SCRIPT)
    assert lab.run("sbatch", name).stdout == "Submitted batch job 1\n"
    assert lab.run("sbatch", "--parsable", name).stdout == "2\n"
    assert lab.run("sbatch", "-Q", name).stdout == ""
    only = lab.run("sbatch", "--test-only", "-N2", name)
    assert only.stdout == ""
    assert only.stderr.startswith("sbatch: Job 4 to start at 2")
    assert only.stderr.endswith(" using 2 processors on nodes n[1-2] in partition low\n")


@pytest.mark.parametrize(("body", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_wait_returns_the_jobs_exit_code(lab: Lab, body: str, code: int) -> None:
    lab.run("sbatch", "--wait", f"--wrap={body}", code=code)


def test_options_of_the_command_line_win_over_the_scripts(lab: Lab) -> None:
    script = "#!/bin/sh\n#SBATCH -J inside -N2\n#SBATCH --comment='a # b' --hold\n"
    lab.run("sbatch", "-J", "out side", write(lab, script), "argument")
    assert lab.run("squeue", "-h", "-o", "%j|%D|%k|%r").stdout == "out side|2|a # b|JobHeldUser\n"


def test_the_batch_scripts_environment(lab: Lab) -> None:
    lab.submit('env > env; echo "$0 $1 $2" > argv; pwd > pwd', "-N2", "--ntasks-per-node=2", "-c1", "-J", "name", "-t5")
    lab.wait_state("1", "COMPLETED")
    values = dict(line.partition("=")[::2] for line in lab.text("env").splitlines())
    wanted = {
        "SLURM_JOB_ID": "1",
        "SLURM_JOBID": "1",
        "SLURM_JOB_NAME": "name",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS": "4",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_JOB_CPUS_PER_NODE": "2(x2)",
        "SLURM_SUBMIT_DIR": str(lab.work),
        "SLURM_JOB_PARTITION": "low",
        "SLURMD_NODENAME": "n1",
        "SLURM_CLUSTER_NAME": "fake",
        "SLURM_PROCID": "0",
    }
    assert {name: values.get(name) for name in wanted} == wanted
    assert "SLURM_RESTART_COUNT" not in values


def test_times_of_the_job_are_in_the_environment_of_the_version_that_has_them(lab_of: Callable[..., Lab]) -> None:
    for like, present in (("22.05", False), ("24.11", True)):
        lab = lab_of(like=like)
        lab.submit("env > env", "-t5")
        lab.wait_state("1", "COMPLETED")
        assert ("SLURM_JOB_END_TIME=" in lab.text("env")) is present


def test_export_none_hides_the_submitters_variables(lab: Lab) -> None:
    environment = {**os.environ, **lab.cluster.env(), "SECRET": "x", "KEPT": "y"}
    for name, option in (("none", "NONE"), ("some", "KEPT,NEW=z"), ("all", "ALL")):
        words = ["sbatch", f"--export={option}", f"--wrap=env > {name}"]
        subprocess.run(words, env=environment, cwd=lab.work, check=True, capture_output=True)
        lab.wait_state(str(("none", "some", "all").index(name) + 1), "COMPLETED")
    assert "SECRET" not in lab.text("none")
    assert "KEPT=y\n" in lab.text("some")
    assert "NEW=z\n" in lab.text("some")
    assert "SECRET" not in lab.text("some")
    assert "SECRET=x\n" in lab.text("all")


def test_tasks_know_their_place(lab: Lab) -> None:
    variables = ("PROCID", "LOCALID", "NODEID", "NTASKS", "STEP_ID")
    values = " ".join(f"$SLURM_{name}" for name in variables)
    show = f"echo $SLURMD_NODENAME {values} >> out.$SLURM_STEP_ID"
    body = f"srun bash -c '{show}'\nsrun -N1 -n2 bash -c '{show}'\nsrun -n3 bash -c '{show}'"
    job = lab.submit(body, "-N2", "-c1", "--ntasks-per-node=2")
    lab.wait_state(job, "COMPLETED")
    assert sorted(lab.text("out.0").splitlines()) == ["n1 0 0 0 4 0", "n1 1 1 0 4 0", "n2 2 0 1 4 0", "n2 3 1 1 4 0"]
    assert sorted(lab.text("out.1").splitlines()) == ["n1 0 0 0 2 1", "n1 1 1 0 2 1"]
    assert sorted(lab.text("out.2").splitlines()) == ["n1 0 0 0 3 2", "n1 1 1 0 3 2", "n2 2 0 1 3 2"]


def test_output_patterns_of_srun(lab: Lab) -> None:
    body = "srun --output='out %j.%t.%N' --error=err.%n bash -c 'echo to out; echo to err >&2'"
    job = lab.submit(body, "-N2")
    lab.wait_state(job, "COMPLETED")
    assert lab.text(f"out {job}.0.n1") == lab.text(f"out {job}.1.n2") == "to out\n"
    assert lab.text("err.0") == lab.text("err.1") == "to err\n"


def test_output_of_tasks_goes_where_sruns_goes(lab: Lab) -> None:
    job = lab.submit("srun echo hello | tr h H; echo input | srun cat", "-N1")
    lab.wait_state(job, "COMPLETED")
    assert lab.text(f"slurm-{job}.out") == "Hello\ninput\n"


def test_srun_exits_with_the_highest_code_and_names_the_task(lab: Lab) -> None:
    job = lab.submit(
        "srun bash -c 'exit $((SLURM_PROCID * 5))'; echo code $?; srun bash -c 'kill -9 $$'; echo code $?", "-N2"
    )
    lab.wait_state(job, "COMPLETED")
    log = lab.text(f"slurm-{job}.out")
    assert "srun: error: n2: task 1: Exited with exit code 5\n" in log
    assert ": Killed\n" in log
    assert "code 5\n" in log
    assert "code 137\n" in log
    assert lab.rows(job, "JobID,State,ExitCode,DerivedExitCode")[0] == [job, "COMPLETED", "0:0", "5:0"]


def test_kill_on_bad_exit_ends_the_other_tasks(lab: Lab) -> None:
    job = lab.submit("srun -K bash -c '[ $SLURM_PROCID = 1 ] && exit 4; sleep 600'", "-N2")
    lab.wait_state(job, "FAILED")


def test_srun_refusals(lab: Lab) -> None:
    assert "unrecognized option '--zz'" in lab.run("srun", "--zz", "true", code=255).stderr
    assert lab.run("srun", code=1).stderr == "srun: fatal: No command given to execute.\n"
    assert "use sbatch" in lab.run("srun", "true", code=1).stderr
    job = lab.submit("srun -N2 true 2> err; srun no-such-command; echo $?", "-N1")
    lab.wait_state(job, "COMPLETED")
    assert lab.text("err") == "srun: error: Only allocated 1 nodes asked for 2\n"
    assert "no-such-command: No such file or directory" in lab.text(f"slurm-{job}.out")


def test_gpus_are_handed_out_and_shown(lab_of: Callable[..., Lab]) -> None:
    lab = lab_of(gpus=4, num_nodes=1)
    jobs = [
        lab.submit("srun bash -c 'echo $CUDA_VISIBLE_DEVICES' > gpus.$SLURM_JOB_ID; sleep 600", option)
        for option in ("--gres=gpu:2", "--gpus-per-node=1")
    ]
    lab.wait_text("gpus.1", "0,1")
    lab.wait_text("gpus.2", "2")
    waiting = lab.submit("true", "--gres=gpu:2")
    wait_for(lambda: lab.field(waiting, "Reason") == "Resources", "the third job to wait")
    assert "gres/gpu=2" in lab.run("scontrol", "show", "job", jobs[0]).stdout
    lab.run("scancel", *jobs)
    lab.wait_state(waiting, "COMPLETED")


def test_dependencies(lab: Lab) -> None:
    first = lab.submit("until [ -e go ]; do sleep 0.05; done; exit 1")
    ok, any_end = lab.submit("true", f"--dependency=afterok:{first}"), lab.submit("true", f"-dafterany:{first}")
    assert lab.field(ok, "Reason") == "Dependency"
    (lab.work / "go").touch()
    lab.wait_state(any_end, "COMPLETED")
    assert lab.field(ok, "Reason") == "DependencyNeverSatisfied"


def test_squeue_shapes(lab: Lab) -> None:
    job = lab.submit("sleep 600", "-N2", "-J", "x", "-t", "1:00:00")
    lab.wait_state(job, "RUNNING")
    held = lab.submit("true", "--hold")
    assert (
        lab.run("squeue", "-h", "-j", job, "-o", "%i %T %t %j %N %P %l %D %r").stdout
        == f"{job} RUNNING R x n[1-2] low 1:00:00 2 None\n"
    )
    assert lab.run("squeue", "--me", "-h", "-t", "PD", "-o", "%i %R").stdout == f"{held} (JobHeldUser)\n"
    assert (
        lab.run("squeue").stdout.splitlines()[0]
        == "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)"
    )
    assert lab.run("squeue", "-h", "-O", "JobID:6,State:9", "-j", job).stdout == f"{job:<6}RUNNING  \n"
    assert lab.run("squeue", "-j", "99", code=1).stderr == "slurm_load_jobs error: Invalid job id specified\n"
    assert "Invalid job state specified: FOO" in lab.run("squeue", "-t", "FOO", code=1).stderr
    assert "Invalid job id: abc" in lab.run("squeue", "-j", "abc", code=1).stderr
    lab.run("scancel", job, held)
    wait_for(lambda: lab.run("squeue", "-h").stdout == "", "an empty queue")
    assert len(lab.run("squeue", "-h", "-t", "all").stdout.splitlines()) == 2


def test_scontrol_shapes_and_refusals(lab: Lab) -> None:
    job = lab.submit("sleep 600", "--comment=note")
    lab.wait_state(job, "RUNNING")
    line = lab.run("scontrol", "show", "job", job, "--oneliner").stdout
    assert line.count("\n") == 1
    names = [word.partition("=")[0] for word in line.split()]
    order = [
        "JobId",
        "JobName",
        "UserId",
        "JobState",
        "Reason",
        "Requeue",
        "Restarts",
        "ExitCode",
        "RunTime",
        "TimeLimit",
        "SubmitTime",
        "EligibleTime",
        "StartTime",
        "EndTime",
        "PreemptEligibleTime",
        "PreemptTime",
        "Partition",
        "NodeList",
        "BatchHost",
        "NumNodes",
        "Command",
        "WorkDir",
        "Comment",
        "StdErr",
        "StdOut",
    ]
    assert [name for name in names if name in order] == order
    assert (
        lab.run("scontrol", "show", "job", "99", code=1).stderr == "slurm_load_jobs error: Invalid job id specified\n"
    )
    assert lab.run("scontrol", "requeue", "99", code=1).stderr == "Invalid job id specified for job 99\n"
    assert lab.run("scontrol", "foo", code=1).stderr == "invalid keyword: foo\n"
    assert lab.run("scontrol", "show", "foo", code=1).stderr == "invalid entity:foo for keyword:show \n"
    assert lab.run("scontrol", "ping").stdout.endswith("is UP\n")
    lab.run("scontrol", "update", f"jobid={job}", "TimeLimit=10", "Comment=other words")
    assert lab.field(job, "TimeLimit") == "00:10:00"
    assert lab.field(job, "EndTime") != "Unknown"
    assert "Comment=other words" in lab.run("scontrol", "show", "job", job).stdout
    assert "NodeName=n2 " in lab.run("scontrol", "show", "node", "n2").stdout
    assert "GraceTime=2 " in lab.run("scontrol", "show", "partition", "low").stdout
    config = lab.run("scontrol", "show", "config").stdout
    settings = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in config.splitlines())}
    wanted = {
        "SLURM_VERSION": "22.05.8",
        "KillWait": "1 sec",
        "JobRequeue": "1",
        "PreemptMode": "REQUEUE",
        "PreemptType": "preempt/partition_prio",
    }
    assert wanted.items() <= settings.items()


def test_scancel_texts(lab: Lab) -> None:
    assert lab.run("scancel", code=1).stderr == "scancel: error: No job identification provided\n"
    assert lab.run("scancel", "abc", code=1).stderr == "scancel: error: Invalid job id abc\n"
    assert lab.run("scancel", "--signal=FOO", "1", code=1).stderr == "Unknown job signal: FOO\n"
    # To end what is not there any more is no error to Slurm.
    lab.run("scancel", "99")
    jobs = [lab.submit("sleep 600", "-J", name) for name in ("a", "b")]
    lab.run("scancel", "--name=a")
    lab.wait_state(jobs[0], "CANCELLED")
    assert lab.state(jobs[1]) in ("RUNNING", "PENDING")


def test_sacct_shapes(lab_of: Callable[..., Lab]) -> None:
    lab = lab_of()
    job = lab.submit("srun true; srun false; true", "-N1", "-J", "x")
    lab.wait_state(job, "COMPLETED")
    assert lab.run("sacct", "-o", "JobID,State,NodeList", "--parsable2", "-j", job).stdout == (
        f"JobID|State|NodeList\n{job}|COMPLETED|n1\n{job}.batch|COMPLETED|n1\n{job}.0|COMPLETED|n1\n{job}.1|FAILED|n1\n"
    )
    assert lab.run("sacct", "-X", "-n", "-o", "jobid%4,state%6", "-j", job).stdout == "   1 COMPL+ \n"
    assert "Invalid field requested" in lab.run("sacct", "-o", "Nonsense", code=1).stderr
    assert lab.run("sacct", "-n", "-S", "now+1hour").stdout == ""
    without = lab_of(accounting=False)
    assert without.run("sacct", code=1).stderr == "Slurm accounting storage is disabled\n"


def test_a_job_whose_output_cannot_be_written_fails(lab: Lab) -> None:
    job = lab.submit("touch ran", "--output=/no/such/folder/%j.out")
    lab.wait_state(job, "FAILED")
    assert lab.field(job, "ExitCode") == "0:53"
    assert not (lab.work / "ran").exists()


def test_a_long_queue_on_many_nodes(lab_of: Callable[..., Lab]) -> None:
    lab = lab_of(num_nodes=64)
    blocker = lab.submit("sleep 600", "-N64", "--exclusive")
    lab.wait_state(blocker, "RUNNING")
    script = write(lab, SCRIPT)
    lab.run("bash", "-c", f"for number in $(seq 20); do sbatch -Q -N$number {script} || exit 1; done")
    lab.run("sbatch", "-Q", "-N2", "--array=0-479", str(script))
    assert len(lab.run("squeue", "-h", "-r").stdout.splitlines()) == 501
    lab.run("scancel", "--state=PENDING", "--me")
    assert len(lab.run("squeue", "-h", "-r").stdout.splitlines()) == 1


def test_srun_labels_lines_with_the_task(lab: Lab) -> None:
    job = lab.submit("srun --label bash -c 'echo one; printf two >&2'", "-N2")
    lab.wait_state(job, "COMPLETED")
    assert sorted(lab.text(f"slurm-{job}.out").splitlines()) == ["0: one", "0: two", "1: one", "1: two"]


def test_srun_finds_its_command_on_the_callers_path(lab: Lab) -> None:
    (lab.work / "tools").mkdir()
    tool = lab.work / "tools" / "my-tool"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    job = lab.submit(f"export PATH={lab.work}/tools:$PATH; srun my-tool", "-N1")
    lab.wait_state(job, "COMPLETED")
    assert lab.text(f"slurm-{job}.out") == "found\n"


def test_srun_takes_over_how_sbatch_opens_files(lab: Lab) -> None:
    for mode, lines in (("append", 2), ("truncate", 1)):
        job = lab.submit(f"srun --output=out.{mode} echo x; srun --output=out.{mode} echo x", f"--open-mode={mode}")
        lab.wait_state(job, "COMPLETED")
        assert lab.text(f"out.{mode}").count("x") == lines


def test_the_environment_wins_over_the_script_and_loses_to_the_command_line(lab: Lab) -> None:
    environment = {**os.environ, **lab.cluster.env(), "SBATCH_JOB_NAME": "outer", "SBATCH_TIMELIMIT": "9"}
    name = write(lab, "#!/bin/sh\n#SBATCH -J inner -t 5 --hold\n")
    words = ["sbatch", "-t", "7", name]
    subprocess.run(words, env=environment, cwd=lab.work, check=True, capture_output=True)
    assert lab.run("squeue", "-h", "-o", "%j %l").stdout == "outer 7:00\n"
