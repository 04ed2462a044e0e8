import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from resilient_launch.core.events import CHECKPOINT_STATUS, KINDS, SCHEMA, EventWriter, read_events


def test_a_line_carries_version_clocks_identity_and_fields(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "a.jsonl", attempt=2, restart=0, node=1, rank=3)
    writer.emit("metric", step=7, values={"loss": 1.5})
    writer.close()
    (event,) = read_events(tmp_path)
    assert event.pop("t") > 0 and event.pop("mono") > 0
    assert event == {"v": SCHEMA, "kind": "metric", "attempt": 2, "restart": 0, "node": 1, "rank": 3, "step": 7,
                     "values": {"loss": 1.5}}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_kind_needs_each_of_its_fields(tmp_path: Path, kind: str) -> None:
    writer = EventWriter(tmp_path / "a.jsonl")
    fields = dict.fromkeys(KINDS[kind], 0)
    writer.emit(kind, **fields, more=1)
    for field in KINDS[kind]:
        with pytest.raises(ValueError, match=field):
            writer.emit(kind, **{name: 0 for name in fields if name != field})
    writer.close()
    assert [event["kind"] for event in read_events(tmp_path)] == [kind]


def test_unknown_kinds_are_refused_when_written_and_passed_on_when_read(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="known kind"):
        writer.emit("celebration")
    (tmp_path / "b.jsonl").write_text('{"kind": "celebration"}\n')
    assert [event["kind"] for event in read_events(tmp_path)] == ["celebration"]


def test_lines_wait_until_flushed_and_large_ones_do_not(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    writer = EventWriter(path)
    writer.emit("phase", phase="step")
    writer.emit("phase", phase="save", flush=True)
    assert len(path.read_bytes().splitlines()) == 2
    writer.emit("phase", phase="x" * 70_000)
    assert len(path.read_bytes().splitlines()) == 3
    writer.close()
    assert len(path.read_bytes().splitlines()) == 3


def test_a_second_writer_appends(tmp_path: Path) -> None:
    for phase in ("init", "step"):
        writer = EventWriter(tmp_path / "a.jsonl")
        writer.emit("phase", phase=phase)
        writer.close()
    assert [event["phase"] for event in read_events(tmp_path)] == ["init", "step"]


def test_a_full_disk_is_counted_and_never_raised() -> None:
    writer = EventWriter(Path("/dev/full"))
    writer.emit("phase", phase="step")
    writer.emit("phase", phase="save", flush=True)
    assert writer.lost == 2
    writer.close()


def test_reading_passes_over_what_is_torn_or_foreign(tmp_path: Path) -> None:
    good = json.dumps({"kind": "phase", "phase": "init"})
    lines = [good, "{torn", "[1]", '{"kind": 3}', "\udcff", good]
    data = "\n".join(lines).encode("utf-8", "surrogateescape") + b"\n" + b'{"kind": "phase"}'
    (tmp_path / "a.jsonl").write_bytes(data)
    (tmp_path / "a.txt").write_text(good + "\n")
    assert [event["phase"] for event in read_events(tmp_path)] == ["init", "init"]
    assert list(read_events([tmp_path / "gone.jsonl"])) == []


def test_files_come_in_name_order(tmp_path: Path) -> None:
    for name in ("2", "1"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"kind": name}) + "\n")
    assert [event["kind"] for event in read_events(tmp_path)] == ["1", "2"]


WRITER = """
import sys
from pathlib import Path
from resilient_launch.core.events import EventWriter
writer = EventWriter(Path(sys.argv[1]))
for step in range(10**9):
    writer.emit("metric", step=step, values={}, flush=True)
    if step == 200:
        print("ready", flush=True)
"""


def test_events_of_a_killed_process_are_readable_without_a_gap(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    argv = [sys.executable, "-c", WRITER, str(tmp_path / "a.jsonl")]
    writer = subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment)
    assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
    writer.kill()
    writer.communicate()
    steps = [event["step"] for event in read_events(tmp_path)]
    assert len(steps) > 200 and steps == list(range(len(steps)))


def test_checkpoint_statuses() -> None:
    assert CHECKPOINT_STATUS == ("begin", "staged", "durable", "failed")
