"""Which failures before the first step would come back every time, and which rank failed first."""

import pytest

from resilient_launch.policy.cause import RankFailure, error_kind, first_failure, last_error, may_be_machine, user_error


def failure(error: str = "", code: int = 1, rank: int = 0, at: float | None = None) -> RankFailure:
    return RankFailure(rank=rank, exit_code=code, error=error, at=at)


@pytest.mark.parametrize(
    "one",
    [
        failure("ModuleNotFoundError: No module named 'nosuch'"),
        failure("ImportError: cannot import name 'x' from 'y'"),
        failure("SyntaxError: invalid syntax"),
        failure(code=2),
        failure(code=126),
        failure(code=127),
    ],
)
def test_certain_from_one_rank(one: RankFailure) -> None:
    assert user_error([one], num_ranks=8)


@pytest.mark.parametrize("error", ["ValueError: bad", "AssertionError", "my.pkg.BadConfig: no", "KeyError: 'lr'"])
def test_an_exception_is_certain_when_every_rank_raised_one(error: str) -> None:
    assert user_error([failure(error), failure(error, rank=1)], num_ranks=2)
    assert not user_error([failure(error)], num_ranks=2)


@pytest.mark.parametrize(
    "one",
    [
        failure("RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        failure("torch.distributed.DistBackendError: NCCL error"),
        failure("RuntimeError: [../gloo/transport/tcp/pair.cc:525] Connection closed by peer"),
        failure("OSError: [Errno 116] Stale file handle"),
        failure("torch.OutOfMemoryError: CUDA out of memory"),
        failure("TimeoutError: The client socket has timed out"),
        failure(code=-9),
        failure(code=-11),
    ],
)
def test_what_a_machine_can_cause_is_never_certain(one: RankFailure) -> None:
    assert may_be_machine(one)
    assert not user_error([one, one], num_ranks=2)


def test_an_exit_code_without_a_traceback_says_nothing() -> None:
    assert not user_error([failure(code=1), failure(code=1)], num_ranks=2)
    assert not may_be_machine(failure(code=1))


def test_the_first_failure_is_not_the_one_that_lost_its_connection() -> None:
    lost = failure("RuntimeError: Connection closed by peer", rank=0, at=10.0)
    cause = failure("ValueError: nan", rank=1, at=10.5)
    assert first_failure([lost, cause]) == cause
    assert first_failure([lost, failure(code=-9, rank=3)]) == failure(code=-9, rank=3)
    later = failure("ValueError: nan", rank=2, at=11.0)
    assert first_failure([later, cause]) == cause
    assert first_failure([]) is None


def test_the_last_line_of_the_last_traceback() -> None:
    text = (
        "step 1\nTraceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'x'\n\nDuring handling:\n\n"
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    f()\nmy.mod.MyError: it is: bad\n'
    )
    assert last_error(text) == "my.mod.MyError: it is: bad"
    ranked = "".join(f"[rank1]: {line}\n" for line in text.splitlines())
    assert last_error(ranked) == "my.mod.MyError: it is: bad"
    assert last_error('  File "a.py", line 1\n    x = = 1\nSyntaxError: invalid syntax\n') == (
        "SyntaxError: invalid syntax"
    )
    assert last_error("Killed\nall is fine: really") == ""
    assert error_kind("my.mod.MyError: it is: bad") == "MyError"
