import pickle

import pytest

from resilient_launch.core import errors


def test_text_says_where_what_why_and_what_to_try() -> None:
    error = errors.UsageError("nodes 0", why="must be at least 1", where="a.yaml:3:8", hint="nodes: 1")
    assert str(error) == "a.yaml:3:8: nodes 0, must be at least 1\ntry: nodes: 1"


def test_parts_that_are_missing_leave_no_trace() -> None:
    assert str(errors.RlaunchError("gone")) == "gone"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.RlaunchError, 1),
        (errors.UsageError, 2),
        (errors.UnreachableError, 3),
        (errors.RefusedError, 1),
        (errors.CheckpointError, 1),
    ],
)
def test_exit_codes_and_pickling(kind: type[errors.RlaunchError], code: int) -> None:
    error = kind("what", why="why", where="where", hint="hint")
    copy = pickle.loads(pickle.dumps(error))  # made here
    assert (type(copy), str(copy), copy.exit_code) == (kind, str(error), code)
