"""What sacct says of jobs that ended in every way: in the formats that rlaunch and submitit use, and in steps."""

from __future__ import annotations

import pytest
from contract_books import Books

_FIELDS = "JobID,State,ExitCode,DerivedExitCode,NodeList"
ROWS = {
    "completed": """
        ID COMPLETED 0:0 0:0 n1
        ID.batch COMPLETED 0:0 - n1
        ID.0 COMPLETED 0:0 - n1""",
    "failed": """
        ID FAILED 5:0 0:0 n1
        ID.batch FAILED 5:0 - n1""",
    "step failed": """
        ID COMPLETED 0:0 3:0 n1
        ID.batch COMPLETED 0:0 - n1
        ID.0 FAILED 3:0 - n1
        ID.1 COMPLETED 0:0 - n1""",
    "killed": """
        ID FAILED 0:9 0:9 n1
        ID.batch CANCELLED 0:9 - n1
        ID.0 CANCELLED 0:9 - n1""",
    "two nodes": """
        ID COMPLETED 0:0 0:0 n[5-6]
        ID.batch COMPLETED 0:0 - n5
        ID.0 COMPLETED 0:0 - n[5-6]""",
    "timed out": """
        ID TIMEOUT 0:0 SIGNALLED n1
        ID.batch CANCELLED 0:9 - n1
        ID.0 CANCELLED 0:9 - n1""",
    "timed out at ease": """
        ID TIMEOUT 0:0 0:0 n1
        ID.batch COMPLETED 0:0 - n1""",
    "cancelled": """
        ID CANCELLED|by|0 0:0 SIGNALLED n2
        ID.batch CANCELLED 0:9 - n2
        ID.0 CANCELLED 0:9 - n2""",
    "cancelled waiting": """
        ID CANCELLED|by|0 0:0 0:0 None|assigned""",
    "again": """
        ID REQUEUED 0:0 0:0 n1
        ID.batch COMPLETED 0:0 - n1
        ID COMPLETED 0:0 0:0 n1
        ID.batch COMPLETED 0:0 - n1""",
    "requeued": """
        ID REQUEUED 0:0 0:0 n2
        ID.batch CANCELLED 0:9 - n2
        ID COMPLETED 0:0 0:0 n2
        ID.batch COMPLETED 0:0 - n2""",
    "preempted": """
        ID PREEMPTED 0:0 0:0 n3
        ID.batch CANCELLED 0:9 - n3
        ID COMPLETED 0:0 0:0 n3
        ID.batch COMPLETED 0:0 - n3""",
    "node lost": """
        ID NODE_FAIL LOST 0:0 n5
        ID.batch CANCELLED - - n5
        ID COMPLETED 0:0 0:0 n5
        ID.batch COMPLETED 0:0 - n5""",
    "node lost for good": """
        ID NODE_FAIL LOST 0:0 n6
        ID.batch CANCELLED - - n6
        ID.0 CANCELLED - - n6""",
    "running": """
        ID RUNNING 0:0 0:0 n1
        ID.batch RUNNING 0:0 - n1
        ID.0 RUNNING 0:0 - n1""",
    "waiting": """
        ID PENDING 0:0 0:0 None|assigned""",
}
"""Every run and step of each job, oldest first; ``-`` is an empty column, a bar stands for a space."""
_ONCE_IN_GRACE = """
        ID COMPLETED 0:0 0:0 n4
        ID.batch COMPLETED 0:0 - n4"""
_TWICE_IN_GRACE = """
        ID PREEMPTED 0:0 0:0 n4
        ID.batch COMPLETED 0:0 - n4
        ID COMPLETED 0:0 0:0 n4
        ID.batch COMPLETED 0:0 - n4"""


def _rows(books: Books, name: str, text: str) -> list[list[str]]:
    words = {"ID": books.jobs[name], "-": ""}
    if "SIGNALLED" in text:
        words["SIGNALLED"] = books.bench.by_version("DerivedExitCode of an ended step", old="0:0", new="0:9")
    if "LOST" in text:
        words["LOST"] = books.bench.by_version("sacct's ExitCode after a node's failure", old="0:0", new="1:0")
    rows = [line.split() for line in text.strip().splitlines()]
    found = [[words.get(word, word.replace("|", " ")) for word in row] for row in rows]
    return [[row[0].replace("ID", words["ID"]), *row[1:]] for row in found]


@pytest.mark.parametrize("name", ROWS)
def test_every_run_and_step_has_its_row(books: Books, name: str) -> None:
    assert books.rows(name, _FIELDS, "--duplicates") == _rows(books, name, ROWS[name])


def test_a_run_that_left_within_its_grace_has_its_row(books: Books) -> None:
    what = "rows of a job that exits with 0 in its grace window"
    rows = books.rows("left in grace", _FIELDS, "-D")
    old, new = ([row[1] for row in _rows(books, "left in grace", text)] for text in (_ONCE_IN_GRACE, _TWICE_IN_GRACE))
    expected = _TWICE_IN_GRACE if books.bench.by_version(what, old=old, new=new) == new else _ONCE_IN_GRACE
    assert rows == _rows(books, "left in grace", expected)


@pytest.mark.parametrize("name", ["requeued", "preempted", "node lost", "again"])
def test_without_duplicates_only_the_newest_run_is_shown(books: Books, name: str) -> None:
    assert books.rows(name, _FIELDS) == _rows(books, name, ROWS[name])[2:]


def test_the_tasks_of_an_array(books: Books) -> None:
    array = books.jobs["array"]
    rows = books.rows("array", "JobID,JobIDRaw,State,ExitCode")
    raw = rows[0][1]
    # The last task's job id is the array's own.
    assert raw.isdecimal() and raw != array
    assert rows == [
        [f"{array}_0", raw, "COMPLETED", "0:0"],
        [f"{array}_0.batch", f"{raw}.batch", "COMPLETED", "0:0"],
        [f"{array}_1", array, "FAILED", "1:0"],
        [f"{array}_1.batch", f"{array}.batch", "FAILED", "1:0"],
    ]
    one = books.bench.run("sacct", "-X", "-n", "-P", "-o", "JobID,State", "-j", f"{array}_1")
    assert one.stdout == f"{array}_1|FAILED\n"


def test_what_rlaunch_asks(books: Books) -> None:
    history = books.bench.slurm.history
    expected = {
        "completed": ["COMPLETED"],
        "preempted": ["PREEMPTED", "COMPLETED"],
        "requeued": ["REQUEUED", "COMPLETED"],
        "node lost": ["NODE_FAIL", "COMPLETED"],
        "timed out": ["TIMEOUT"],
        "cancelled": ["CANCELLED"],
    }
    for name, states in expected.items():
        rows = history(books.jobs[name])
        assert [row.state for row in rows] == states, name
        assert all(row.submit_time and row.end_time and row.submit_time <= row.end_time for row in rows)
        submitted = [row.submit_time for row in rows]
        assert len(set(submitted)) == len(submitted)
    (row,) = history(books.jobs["step failed"])
    assert (row.exit_code, row.exit_signal, row.derived_exit_code, row.nodes) == (0, 0, 3, "n1")
    (row,) = history(books.jobs["timed out"])
    assert row.start_time and row.end_time and row.end_time - row.start_time >= 60
    (row,) = history(books.jobs["waiting"])
    assert (row.state, row.start_time, row.end_time, row.nodes) == ("PENDING", None, None, "")


def test_what_submitit_asks(books: Books) -> None:
    done, lost = books.jobs["completed"], books.jobs["node lost"]
    command = ("sacct", "-o", "JobID,State,NodeList", "--parsable2", "-j", done, "-j", lost)
    assert books.bench.run(*command).stdout == (
        f"JobID|State|NodeList\n{done}|COMPLETED|n1\n{done}.batch|COMPLETED|n1\n{done}.0|COMPLETED|n1\n"
        f"{lost}|COMPLETED|n5\n{lost}.batch|COMPLETED|n5\n"
    )


def test_what_a_step_is_called_and_how_large_it_is(books: Books) -> None:
    job_id = books.jobs["two nodes"]
    assert books.rows("two nodes", "JobID,JobIDRaw,JobName,NNodes,NTasks,NodeList,Partition,User,Timelimit") == [
        [job_id, job_id, "pair", "2", "", "n[5-6]", "low", "root", "00:10:00"],
        [f"{job_id}.batch", f"{job_id}.batch", "batch", "1", "1", "n5", "", "", ""],
        [f"{job_id}.0", f"{job_id}.0", "true", "2", "2", "n[5-6]", "", "", ""],
    ]


def test_the_layouts_of_the_table(books: Books) -> None:
    job_id = books.jobs["cancelled"]

    def said(*options: str) -> str:
        return books.bench.run("sacct", "-X", "-j", job_id, *options).stdout

    assert said("-o", "JobID%6,State") == f" JobID      State \n------ ---------- \n{job_id:>6} CANCELLED+ \n"
    assert said("-n", "-o", "JobID,State%-20") == f"{job_id:12} CANCELLED by 0       \n"
    assert said("-p", "-o", "JobID,ExitCode") == f"JobID|ExitCode|\n{job_id}|0:0|\n"
    assert said("-P", "-n", "--delimiter=;", "-o", "State,JobID") == f"CANCELLED by 0;{job_id}\n"
    assert said("-n", "-b") == f"{job_id:12} CANCELLED+      0:0 \n"
    assert said("-P").splitlines()[0] == "JobID|JobName|Partition|Account|AllocCPUS|State|ExitCode"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("-P -o JobID,State -j 987654", 0, "JobID|State\n"),
        ("-n -o JobID,Nope", 1, 'sacct: error: Invalid field requested: "Nope"\n'),
        ("-j x", 1, "sacct: fatal: Bad job/step specified: x\n"),
    ],
)
def test_a_question_that_has_no_answer(books: Books, words: str, code: int, said: str) -> None:
    done = books.bench.run("sacct", *words.split())
    assert (done.returncode, done.stdout + done.stderr) == (code, said)
