from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.cluster import slurm_text
from resilient_launch.cluster.base import JobRow, JobView
from resilient_launch.core.errors import RlaunchError

RUNNING = """\
JobId=2 JobName=na me=x JobState=FAILED Reason=No
   UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A
   Priority=4294901758 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=3 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:01 TimeLimit=1-02:03:04 TimeMin=N/A
   SubmitTime=1795965962 EligibleTime=1795965963 AccrueTime=1795965962
   StartTime=1795965964 EndTime=1795965999 Deadline=N/A
   PreemptEligibleTime=1795965963 PreemptTime=1795965989
   SuspendTime=None SecsPreSuspend=0 LastSchedEval=1795965963 Scheduler=Backfill
   Partition=low AllocNode:Sid=localhost:3432
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[1-2]
   BatchHost=n1
   NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   TRES=cpu=2,mem=128M,node=2,billing=2
   Command=/home/ada/NodeList=n9 JobState=TIMEOUT
   WorkDir=/home/ada/a b
   Comment=a b=c NumNodes=77\x20
   StdErr=/home/ada/slurm-2.out
   Power=


"""

ARRAY = """\
JobId=3 ArrayJobId=3 ArrayTaskId=2 JobName=arr
   JobState=RUNNING Reason=None Dependency=(null)
   NumNodes=1 NumCPUs=1

JobId=5 ArrayJobId=3 ArrayTaskId=1 JobName=arr
   JobState=PENDING Reason=BeginTime Dependency=(null)
   NumNodes=1-4 NumCPUs=1

"""


def test_every_field_of_a_job() -> None:
    assert slurm_text.parse_show_job(RUNNING, "2") == JobView(
        job_id="2",
        state="RUNNING",
        reason="",
        name="na me=x JobState=FAILED Reason=No",
        user="ada",
        partition="low",
        submit_time=1795965962,
        eligible_time=1795965963,
        start_time=1795965964,
        end_time=1795965999,
        preempt_time=1795965989,
        time_limit_s=93784,
        num_nodes=2,
        nodes="n[1-2]",
        batch_host="n1",
        restart_count=3,
        exit_code=0,
        exit_signal=0,
        may_requeue=True,
        comment="a b=c NumNodes=77",
    )


@pytest.mark.parametrize(
    ("job_id", "found", "state"), [("3", "3_2", "RUNNING"), ("3_1", "3_1", "PENDING"), ("5", "3_1", "PENDING")]
)
def test_an_arrays_task_is_found_by_either_id(job_id: str, found: str, state: str) -> None:
    view = slurm_text.parse_show_job(ARRAY, job_id)
    assert (view.job_id, view.state, view.num_nodes) == (found, state, 1)


@pytest.mark.parametrize(
    "text", ["", "\n", "JobId=7 JobName=x\n   JobState=RUNNING", "JobId=2 JobName=x\n   Reason=None"]
)
def test_an_answer_about_something_else_is_an_error(text: str) -> None:
    with pytest.raises(RlaunchError, match="job 2"):
        slurm_text.parse_show_job(text, "2")


def test_a_field_counts_where_slurm_prints_it_first() -> None:
    # A comment of several lines, which others may set on their jobs.
    text = RUNNING.replace("a b=c NumNodes=77", "a\n   JobState=FAILED NumNodes=77\nJobId=9 JobName=x")
    view = slurm_text.parse_show_job(text, "2")
    assert (view.state, view.num_nodes) == ("RUNNING", 2)


@pytest.mark.parametrize(
    "nothing", ["", "Unknown", "None", "N/A", "NONE", "(null)", "now", "9" * 5000, "0000-00-00T00:00:00"]
)
def test_no_time(nothing: str) -> None:
    assert slurm_text.parse_time(nothing) is None


def test_a_time_is_seconds_or_local_iso(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slurm_text.parse_time(" 1795965962 ") == 1795965962
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert slurm_text.parse_time("2026-01-15T12:00:00") == 1768496400
        assert slurm_text.parse_time("2026-07-15T12:00:00") == 1784131200
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93784),
        ("02:03:04", 7384),
        ("365-00:00:00", 31536000),
        ("5:00", 300),
        ("00:01:00", 60),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("INVALID", None),
        ("NOT_SET", None),
        ("", None),
        ("1-", None),
    ],
)
def test_durations(text: str, seconds: int | None) -> None:
    assert slurm_text.parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("REQUEUE_HOLD", "PENDING"),
        ("SPECIAL_EXIT", "PENDING"),
        ("SIGNALING", "RUNNING"),
        ("RESIZING", "RUNNING"),
        ("COMPLETING", "COMPLETING"),
    ],
)
def test_a_held_job_waits_and_a_signalled_one_runs(said: str, state: str) -> None:
    assert slurm_text.parse_show_job(RUNNING.replace("JobState=RUNNING", f"JobState={said}"), "2").state == state
    values = f"7|{said}|reason|0|0|0|10:00|1|low|root|||name"
    assert slurm_text.parse_squeue(values)["7"].state == state


def test_squeue() -> None:
    text = (
        "2|RUNNING|None|1795965962|1795965963|1827501963|1:00:00|2|low|ada|n1|n[1-2]|a|b =c\n"
        "3_4|PENDING|BeginTime|1795965962|N/A|NONE|UNLIMITED|1-4|low|ada|n/a||(null)\n"
    )
    jobs = slurm_text.parse_squeue(text)
    assert set(jobs) == {"2", "3_4"}
    assert jobs["2"] == JobView(
        job_id="2",
        state="RUNNING",
        name="a|b =c",
        user="ada",
        partition="low",
        submit_time=1795965962,
        start_time=1795965963,
        end_time=1827501963,
        time_limit_s=3600,
        num_nodes=2,
        nodes="n[1-2]",
        batch_host="n1",
    )
    pending = jobs["3_4"]
    assert (pending.state, pending.reason, pending.name, pending.batch_host) == ("PENDING", "BeginTime", "(null)", "")
    assert pending.start_time is None and pending.end_time is None and pending.time_limit_s is None


def test_a_squeue_line_of_another_form_is_an_error() -> None:
    with pytest.raises(RlaunchError, match="columns"):
        slurm_text.parse_squeue("slurm_load_jobs error\n")


def test_sacct_rows_come_oldest_first_and_odd_lines_are_left_out() -> None:
    text = (
        "7|CANCELLED by 1000|300|310|320|0:15|0:0|n[1-2]\n"
        "garbage\n"
        "7|PREEMPTED|100|110|120|0:0|0:0|n1\n"
        "7|NODE_FAIL+|200|Unknown|Unknown|1:0|2:0|None assigned\n"
    )
    rows = slurm_text.parse_sacct(text)
    assert [(row.state, row.submit_time) for row in rows] == [
        ("PREEMPTED", 100),
        ("NODE_FAIL", 200),
        ("CANCELLED", 300),
    ]
    assert rows[1] == JobRow(
        job_id="7",
        state="NODE_FAIL",
        submit_time=200,
        start_time=None,
        end_time=None,
        exit_code=1,
        exit_signal=0,
        derived_exit_code=2,
        nodes="",
    )
    assert rows[2].exit_signal == 15


def test_a_nodes_address() -> None:
    text = (
        "NodeName=n1 Arch=x86_64\n   NodeAddr=10.0.0.7 NodeHostName=vm Port=1\n"
        "   OS=Linux NodeAddr=1.1.1.1\n   Reason=x NodeAddr=2.2.2.2\n"
    )
    assert slurm_text.parse_node_address(text) == "10.0.0.7"
    assert slurm_text.parse_node_address(text.replace("NodeAddr=10.0.0.7 ", "")) == "vm"
    assert slurm_text.parse_node_address("   Reason=x NodeAddr=2.2.2.2") is None


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (
            "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: No partition\n",
            "invalid partition specified: x; Batch job submission failed: No partition",
        ),
        (
            "sbatch: unrecognized option '--frob'\nTry \"sbatch --help\" for more information\n",
            "unrecognized option '--frob'",
        ),
        ("slurm_load_jobs error: Invalid job id specified\n", "Invalid job id specified"),
        ("Job is pending execution for job 2", "Job is pending execution for job 2"),
        ("scontrol: fatal: Could not\x1b[31m", "Could not [31m"),
        ("a\na\n", "a"),
        ("", ""),
    ],
)
def test_slurms_words_without_its_trimmings(text: str, clean: str) -> None:
    assert slurm_text.clean_message(text) == clean


FIELDS = st.sampled_from(
    ["JobId=2", "JobState=", "ExitCode=", "NumNodes=", "EndTime=", " JobName=", "\n   ", "|", "=", "9" * 99]
)
TEXTS = st.text() | st.lists(FIELDS | st.text(max_size=8)).map("".join)


@pytest.mark.parametrize(
    "parse",
    [
        slurm_text.parse_time,
        slurm_text.parse_duration,
        lambda text: slurm_text.parse_show_job(text, "2"),
        slurm_text.parse_squeue,
        slurm_text.parse_sacct,
        slurm_text.parse_node_address,
        slurm_text.clean_message,
    ],
)
@given(text=TEXTS)
def test_any_text_is_read_or_refused(parse: Callable[[str], object], text: str) -> None:
    try:
        parse(text)
    except RlaunchError as error:
        assert str(error)


@given(
    name=st.text(st.characters(exclude_categories=["Cc", "Cs"])),
    comment=st.text(st.characters(exclude_categories=["Cc", "Cs"])),
)
def test_a_name_or_comment_never_becomes_another_field(name: str, comment: str) -> None:
    text = RUNNING.replace("na me=x JobState=FAILED Reason=No", name).replace("a b=c NumNodes=77", comment)
    view = slurm_text.parse_show_job(text, "2")
    assert (view.state, view.num_nodes, view.nodes, view.name) == ("RUNNING", 2, "n[1-2]", name.strip())


RESERVATIONS = (
    "ReservationName=mnt StartTime=1795970000 EndTime=1795973600 Duration=01:00:00 Nodes=n[1-2] NodeCnt=2 CoreCnt=8 "
    "Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=8 Users=root Groups=(null) "
    "Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n"
    "ReservationName=class StartTime=1795980000 EndTime=1795983600 Duration=01:00:00 Nodes=(null) NodeCnt=0 CoreCnt=0 "
    "Features=(null) PartitionName=(null) Flags= TRES=(null) Users=ada\n"
)


def test_reservations() -> None:
    mnt, lesson = slurm_text.parse_reservations(RESERVATIONS)
    assert (mnt.name, mnt.start_time, mnt.end_time, mnt.nodes) == ("mnt", 1795970000, 1795973600, "n[1-2]")
    assert mnt.is_maintenance
    assert (lesson.nodes, lesson.flags, lesson.is_maintenance) == ("", (), False)
    assert slurm_text.parse_reservations("No reservations in the system\n") == []


def test_comments_may_hold_anything_and_lines_may_be_broken() -> None:
    text = "7|RUNNING|2|low|ada|n[1-2]|a|b=c d\n8|SIGNALING|1|low|bob|n3|(null)\nslurm_load_jobs error\n\n"
    found = slurm_text.parse_comments(text)
    assert list(found) == ["7", "8"]
    view, comment = found["7"]
    assert (view.num_nodes, view.user, view.nodes, comment) == (2, "ada", "n[1-2]", "a|b=c d")
    assert (found["8"][0].state, found["8"][1]) == ("RUNNING", "")
