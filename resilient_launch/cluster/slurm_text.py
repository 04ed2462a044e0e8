"""What Slurm's commands print, as values. Pure functions: text in, values out."""

from __future__ import annotations

import math
import re
from datetime import datetime

from resilient_launch.cluster.base import JobRow, JobView, Reservation
from resilient_launch.core.errors import RlaunchError

SQUEUE_FORMAT = "%i|%T|%r|%V|%S|%e|%l|%D|%P|%u|%B|%N|%j"
"""squeue's columns, the only one that a user may fill freely last."""

COMMENT_FORMAT = "%i|%T|%D|%P|%u|%N|%k"
"""The columns of ``parse_comments``, the only one that a user may fill freely last."""

RUNNING_STATES = "RUNNING,SIGNALING,RESIZING"
"""What Slurm calls a running job: the last two for the moment in which it signals it or takes nodes from it."""

SACCT_FIELDS = "JobID,State,Submit,Start,End,ExitCode,DerivedExitCode,NodeList"

_NOTHING = frozenset({"", "(null)", "N/A", "n/a", "None", "NONE", "Unknown", "None assigned"})
_WAITING = frozenset({"REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
"""Newer Slurms' names for a job that waits, and is held, after a requeue; its reason says so too."""
_FREE_TEXT = re.compile(r"(?:AdminComment|BurstBuffer|Command|Comment|Extra|Std\w+|SystemComment|WorkDir)=")
"""Lines of `scontrol show job` whose value is the user's: it may look like fields."""
_WORD_FIELD = re.compile(r"([A-Za-z/:]+)=(\S*)")
_PREFIX = re.compile(r"^(?:\w[\w.-]*: )?(?:error|fatal): |^\w+ error: |^s[a-z]+: ", re.IGNORECASE)
_ADVICE = re.compile(r'^Try "')


def parse_time(text: str) -> int | None:
    """Seconds since the epoch of a time Slurm printed, as seconds or as local ISO time; None for its many nothings."""
    text = text.strip()
    if re.fullmatch(r"\d{1,12}", text, re.ASCII):
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError, OSError):
        return None


def parse_duration(text: str) -> int | None:
    """Seconds of a duration Slurm printed: D-HH:MM:SS, HH:MM:SS or MM:SS; None for UNLIMITED and the like."""
    match = re.fullmatch(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})", text.strip(), re.ASCII)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + seconds


def parse_show_job(text: str, job_id: str) -> JobView:
    """The job ``job_id`` in the answer of `scontrol show job`. Raises RlaunchError when it is not there.

    The many-line form is read, because only there a name or a comment ends where its line does.
    """
    records = [_job_fields(record) for record in re.split(r"^(?=JobId=)", text, flags=re.MULTILINE)]
    fields = next((found for found in records if job_id in (_array_id(found), found.get("JobId"))), None)
    if fields is None or not fields.get("JobState"):
        raise RlaunchError(f"scontrol's answer about job {job_id}", why="it does not describe the job")
    exit_code, exit_signal = _exit(fields.get("ExitCode", ""))
    return JobView(
        job_id=_array_id(fields) or fields["JobId"],
        state=_state(fields["JobState"]),
        reason=_text(fields.get("Reason", "")),
        name=fields.get("JobName", "").strip(),
        user=fields.get("UserId", "").partition("(")[0],
        partition=_text(fields.get("Partition", "")),
        submit_time=parse_time(fields.get("SubmitTime", "")),
        eligible_time=parse_time(fields.get("EligibleTime", "")),
        start_time=parse_time(fields.get("StartTime", "")),
        end_time=parse_time(fields.get("EndTime", "")),
        preempt_time=parse_time(fields.get("PreemptTime", "")),
        time_limit_s=parse_duration(fields.get("TimeLimit", "")),
        # A pending job that takes a range of nodes prints "2-4".
        num_nodes=_int(fields.get("NumNodes", "").partition("-")[0]) or 0,
        nodes=_text(fields.get("NodeList", "")),
        batch_host=_text(fields.get("BatchHost", "")),
        restart_count=_int(fields.get("Restarts", "")) or 0,
        exit_code=exit_code,
        exit_signal=exit_signal,
        may_requeue=fields["Requeue"] == "1" if "Requeue" in fields else None,
        comment="" if (comment := fields.get("Comment", "").strip()) == "(null)" else comment,
    )


def _state(text: str) -> str:
    return "PENDING" if text in _WAITING else "RUNNING" if text in RUNNING_STATES.split(",") else text


def parse_squeue(text: str) -> dict[str, JobView]:
    """The jobs in an answer of squeue in ``SQUEUE_FORMAT``. Raises RlaunchError for a line of any other form."""
    jobs = {}
    for line in text.split("\n"):
        if not line.strip():
            continue
        values = line.split("|", SQUEUE_FORMAT.count("|"))
        if len(values) <= SQUEUE_FORMAT.count("|"):
            raise RlaunchError(f"squeue's answer {line[:80]!r}", why="it does not have the columns that were asked for")
        job_id, state, reason, submit, start, end, limit, num_nodes, partition, user, batch_host, nodes, name = values
        jobs[job_id] = JobView(
            job_id=job_id,
            state=_state(state),
            reason=_text(reason),
            name=name.strip(),
            user=user,
            partition=_text(partition),
            submit_time=parse_time(submit),
            start_time=parse_time(start),
            end_time=parse_time(end),
            time_limit_s=parse_duration(limit),
            num_nodes=_int(num_nodes.partition("-")[0]) or 0,
            nodes=_text(nodes),
            batch_host=_text(batch_host),
        )
    return jobs


def parse_comments(text: str) -> dict[str, tuple[JobView, str]]:
    """The jobs in an answer of squeue in ``COMMENT_FORMAT``, each with its comment; unreadable lines are left out."""
    jobs = {}
    for line in text.split("\n"):
        values = line.split("|", COMMENT_FORMAT.count("|"))
        if len(values) <= COMMENT_FORMAT.count("|"):
            continue
        job_id, state, num_nodes, partition, user, nodes, comment = values
        view = JobView(
            job_id=job_id,
            state=_state(state),
            num_nodes=_int(num_nodes) or 0,
            partition=_text(partition),
            user=user,
            nodes=_text(nodes),
        )
        jobs[job_id] = (view, _text(comment))
    return jobs


def parse_reservations(text: str) -> list[Reservation]:
    """The reservations in an answer of `scontrol --oneliner show reservation`; one without both times is left out."""
    found = []
    for line in text.split("\n"):
        fields = dict(_WORD_FIELD.findall(line))
        start, end = parse_time(fields.get("StartTime", "")), parse_time(fields.get("EndTime", ""))
        if fields.get("ReservationName") and start is not None and end is not None:
            flags = tuple(flag for flag in fields.get("Flags", "").split(",") if flag)
            nodes = _text(fields.get("Nodes", ""))
            found.append(
                Reservation(name=fields["ReservationName"], start_time=start, end_time=end, nodes=nodes, flags=flags)
            )
    return found


def parse_sacct(text: str) -> list[JobRow]:
    """The rows of `sacct --parsable2` with ``SACCT_FIELDS``, by submit time; unreadable lines are left out."""
    rows = []
    for line in text.split("\n"):
        values = line.split("|")
        if len(values) != SACCT_FIELDS.count(",") + 1 or not values[1].strip():
            continue
        job_id, state, submit, start, end, exit_status, derived, nodes = values
        exit_code, exit_signal = _exit(exit_status)
        rows.append(
            JobRow(
                job_id=job_id,
                state=state.split()[0].rstrip("+"),
                submit_time=parse_time(submit),
                start_time=parse_time(start),
                end_time=parse_time(end),
                exit_code=exit_code,
                exit_signal=exit_signal,
                derived_exit_code=_exit(derived)[0],
                nodes=_text(nodes),
            )
        )
    return sorted(rows, key=lambda row: math.inf if row.submit_time is None else row.submit_time)


def parse_node_address(text: str) -> str | None:
    """NodeAddr in the answer of `scontrol show node`; where it is missing, NodeHostName."""
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        # OS= and Reason= hold free text, to the end of their lines.
        if not line.strip().startswith(("OS=", "Reason=", "Comment=", "Extra=")):
            fields = dict(_WORD_FIELD.findall(line)) | fields
    return _text(fields.get("NodeAddr", "")) or _text(fields.get("NodeHostName", "")) or None


def clean_message(text: str) -> str:
    """Slurm's own words on standard error in one line, without the name of the command before each of them."""
    lines = []
    for raw in text.splitlines():
        line = "".join(character if character.isprintable() else " " for character in raw).strip()
        shortened = _PREFIX.sub("", line)
        if shortened and not _ADVICE.match(shortened) and shortened not in lines:
            lines.append(shortened)
    return "; ".join(lines)[:1000]


def _job_fields(record: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in record.strip().split("\n"):
        if _FREE_TEXT.match(line.strip()):
            key, _, value = line.strip().partition("=")
            fields.setdefault(key, value)
            continue
        head, has_name, name = line.partition(" JobName=")
        for key, value in _WORD_FIELD.findall(head):
            fields.setdefault(key, value)
        if has_name:
            fields.setdefault("JobName", name)
    return fields


def _array_id(fields: dict[str, str]) -> str:
    array, task = fields.get("ArrayJobId", ""), fields.get("ArrayTaskId", "")
    return f"{array}_{task}" if array and task else ""


def _text(value: str) -> str:
    value = value.strip()
    return "" if value in _NOTHING else value


def _int(value: str) -> int | None:
    return int(value) if re.fullmatch(r"\d{1,12}", value, re.ASCII) else None


def _exit(value: str) -> tuple[int | None, int | None]:
    code, _, signal = value.strip().partition(":")
    return _int(code), _int(signal)
