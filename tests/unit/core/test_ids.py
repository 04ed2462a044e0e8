import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.core.errors import UsageError
from resilient_launch.core.ids import CheckpointId, check_run_name


@pytest.mark.parametrize("name", ["a", "run-1", "2024.x_y", "A" * 100])
def test_run_names(name: str) -> None:
    assert check_run_name(name) == name


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "a/b", "a%j", "$(x)", "a\n", "ä", "A" * 101])
def test_names_that_are_no_directory_job_name_and_shell_word_alike(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_run_name(name, where="here")
    assert caught.value.where == "here"
    suggestion = caught.value.hint.removeprefix("name: ")
    assert check_run_name(suggestion) == suggestion


IDS = st.builds(CheckpointId, st.integers(0, 10**6), st.integers(0, 10**4), st.integers(0, 10**12))


@given(IDS)
def test_checkpoint_names_read_back(checkpoint: CheckpointId) -> None:
    assert CheckpointId.parse(str(checkpoint)) == checkpoint


def test_checkpoint_name_format() -> None:
    assert str(CheckpointId(attempt=2, restart=0, step=300)) == "step-00000300.a0002.r0"


@pytest.mark.parametrize(
    "name",
    [
        "step-300.a0002.r0",
        "step-00000300.a0002",
        "step-000000300.a0002.r0",
        "step-00000300.a0002.r00",
        "LATEST",
        ".tmp-step-00000300.a0002.r0",
        "step-00000300.a0002.r0.corrupt",
        "step-00000300.a0002.r0\n",
    ],
)
def test_no_other_name_is_a_checkpoint(name: str) -> None:
    assert CheckpointId.parse(name) is None


def test_order_is_age_in_the_lineage_not_the_step() -> None:
    rolled_back = CheckpointId(attempt=3, restart=0, step=100)
    before = CheckpointId(attempt=2, restart=1, step=300)
    assert sorted([rolled_back, before]) == [before, rolled_back]
