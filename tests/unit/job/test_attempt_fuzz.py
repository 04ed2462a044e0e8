"""Whatever lies where claims and ends of attempts are kept, reading it is quiet; the next claim has its number."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import Attempt, AttemptRecord, claim, read_attempts, read_ends

FIELDS = sorted(Attempt.__dataclass_fields__ | AttemptRecord.__dataclass_fields__)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
RECORDS = st.dictionaries(st.sampled_from(FIELDS), VALUES).map(json.dumps).map(str.encode)
WHOLE = st.fixed_dictionaries(dict.fromkeys(FIELDS, VALUES) | {"number": st.integers(0, 3)})
NAMES = st.sampled_from(["0000.json", "0001.json", "0002.end.json", "0000.end.json", "x.json", "00.json", ".tmp-1"])


@settings(max_examples=60)
@given(st.dictionaries(NAMES, st.binary(max_size=50) | RECORDS | WHOLE.map(json.dumps).map(str.encode)))
def test_arbitrary_files(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        paths = RunPaths(Path(scratch) / "run")
        for directory in paths.all():
            directory.mkdir(parents=True)
        for name, data in files.items():
            (paths.attempts / name).write_bytes(data)
        assert {attempt.number for attempt in read_attempts(paths)} <= {0, 1}
        assert read_ends(paths).keys() <= {0, 2}
        taken = {int(name[:-5]) for name in files if name[:-5].isdigit()}
        mine = claim(paths, job_id="j", slurm_restart_count=9, nodes=["n"], addresses=["a"], port=1, code_version="")
        assert mine.number == max(taken, default=-1) + 1
        assert mine in read_attempts(paths)
