"""What is said at submit about saves that outlast a notice."""

import pytest

from resilient_launch.launch.advice import too_short


@pytest.mark.parametrize(
    ("grace", "kill_wait", "lead", "words"),
    [
        (None, None, 120.0, []),
        (60.0, 30.0, 120.0, []),
        (10.0, 30.0, 120.0, ["GraceTime"]),
        (10.0, 5.0, 12.0, ["GraceTime", "KillWait", "signal_lead"]),
    ],
)
def test_each_notice_that_a_save_outlasts_is_named(
    grace: float | None, kill_wait: float | None, lead: float, words: list[str]
) -> None:
    said = too_short(15.0, 10.0, grace_s=grace, kill_wait_s=kill_wait, lead_s=lead)
    assert len(said) == len(words)
    assert all(word in sentence for word, sentence in zip(words, said, strict=True))
