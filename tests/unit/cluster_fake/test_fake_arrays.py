"""Job arrays and dependencies on the fake, where the contract cannot look: accounting, and a new controller."""

from __future__ import annotations

import pytest
from fake_lab import Lab, wait_for

from resilient_launch.cluster.fake.arrays import read, tasks, write
from resilient_launch.cluster.fake.dependency import read as read_dependency


@pytest.mark.parametrize(
    ("text", "numbers", "limit"),
    [("3", [3], 0), ("0-3%2", [0, 1, 2, 3], 2), ("7,1-9:4", [1, 5, 7, 9], 0), ("5,5", [5], 0), ("1000", [1000], 0)],
)
def test_array_values(text: str, numbers: list[int], limit: int) -> None:
    assert read(text) == (numbers, limit)
    assert [task.index for task in tasks(9, numbers, limit)] == numbers


@pytest.mark.parametrize("text", ["", "x", "3-1", "1-", "0-4:0", "1001", "1%", "1%x", "1;2"])
def test_bad_array_values(text: str) -> None:
    with pytest.raises(ValueError, match="bad"):
        read(text)


def test_numbers_fold() -> None:
    assert write([7, 0, 1, 2], 3) == "0-2,7%3"
    assert write([4]) == "4"


def test_a_dependency_may_not_mix_in_what_is_none() -> None:
    for text in ("afterok", "afterok:1,", "never:1", "afterok:1:x", "singleton:1"):
        if text == "afterok:1,":
            assert read_dependency(text, lambda _: [], must_exist=False) == ""
        else:
            with pytest.raises(ValueError, match="bad dependency"):
                read_dependency(text, lambda _: [], must_exist=False)
    with pytest.raises(ValueError, match="unknown job"):
        read_dependency("afterok:5", lambda _: [], must_exist=True)


def test_accounting_has_a_row_for_every_run_of_every_task(lab: Lab) -> None:
    array = lab.submit('[ -n "$SLURM_RESTART_COUNT" ] || { touch up$SLURM_ARRAY_TASK_ID; sleep 600; }', "--array=0-1")
    for index in "01":
        lab.wait_file(f"up{index}")
    lab.run("scontrol", "requeue", f"{array}_0")
    wait_for(lambda: lab.rows(f"{array}_0", "State", "-X") == [["REQUEUED"], ["COMPLETED"]], "both runs of task 0")
    assert lab.rows(f"{array}_1", "JobID,State", "-X") == [[f"{array}_1", "RUNNING"]]
    lab.run("scancel", array)
    wait_for(lambda: len(lab.rows(array, "State", "-X")) == 3, "all runs of the array")
    found = {(row[0], row[1].split()[0]) for row in lab.rows(array, "JobID,State", "-X")}
    assert found == {(f"{array}_0", "REQUEUED"), (f"{array}_0", "COMPLETED"), (f"{array}_1", "CANCELLED")}
    raw = {row[0] for row in lab.rows(array, "JobIDRaw", "-X")}
    assert array in raw and len(raw) == 2


def test_an_array_outlives_its_controller(lab: Lab) -> None:
    array = lab.submit("until [ -e go ]; do sleep 0.1; done", "--array=0-2%1")
    wait_for(lambda: "RUNNING" in lab.run("squeue", "-h", "-o", "%T").stdout, "a task to run")
    after = lab.submit("true", f"--dependency=afterok:{array}")
    lab.cluster.controller_down()
    lab.cluster.controller_up()
    rows = lab.run("squeue", "-h", "-o", "%i|%r|%E", "-j", f"{array},{after}").stdout.split()
    assert f"{array}_[1-2%1]|JobArrayTaskLimit|(null)" in rows
    assert f"{after}|Dependency|afterok:{array}_*(unfulfilled)" in rows
    (lab.work / "go").touch()
    lab.wait_state(after, "COMPLETED")
