import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.core.errors import UsageError
from resilient_launch.core.units import (
    MAX_DURATION_S,
    format_duration,
    format_size,
    format_slurm_time,
    parse_duration,
    parse_size,
    slurm_minutes,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("2h30m", 9000),
        ("2h 30m", 9000),
        ("1d12h", 129600),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("0.1s", 0.1),
        ("1m0.25s", 60.25),
        ("12:30:00", 45000),
        ("48:00:00", 172800),
        ("1-12:00:00", 129600),
        ("0", 0),
        (" 5m ", 300),
    ],
)
def test_durations_that_people_write(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "part_of_message"),
    [
        ("600", "has no unit"),
        ("1.5", "has no unit"),
        ("30:00", "30h00m or 30m00s"),
        ("12:60:00", "above 59"),
        ("1-24:00:00", "above 59"),
        ("", "a duration is"),
        ("soon", "a duration is"),
        ("10 minutes", "a duration is"),
        ("30m2h", "a duration is"),
        ("-5m", "a duration is"),
        ("1e3s", "a duration is"),
        ("0.0001s", "finer than a millisecond"),
        ("10001d", "too long"),
        ("٣m", "a duration is"),
        ("9" * 5000, "a duration is"),
    ],
)
def test_what_is_not_a_duration_says_why(text: str, part_of_message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert part_of_message in str(caught.value)
    assert caught.value.hint
    assert len(str(caught.value)) < 300


def test_suggested_durations_are_accepted() -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration("30:00")
    assert [parse_duration(word) for word in caught.value.hint.split(" or ")] == [108000, 1800]


@given(st.integers(0, MAX_DURATION_S * 1000))
def test_every_duration_reads_back_exactly(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (90, "1m30s"), (129600, "1d12h"), (1.5, "1.5s"), (60.001, "1m0.001s"), (-90, "-1m30s")],
)
def test_duration_format(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_unlimited() -> None:
    assert format_duration(math.inf) == "unlimited"
    assert format_slurm_time(math.inf) == "UNLIMITED"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1, "00:01:00"), (60, "00:01:00"), (60.001, "00:02:00"), (45000, "12:30:00"), (129600, "1-12:00:00")],
)
def test_slurm_time_rounds_up_to_the_minute(seconds: float, text: str) -> None:
    assert format_slurm_time(seconds) == text
    assert parse_duration(text) == slurm_minutes(seconds) * 60 >= seconds


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("4G", 4 * 1024**3),
        ("4096M", 4 * 1024**3),
        ("1.5GiB", 1610612736),
        ("1T", 1024**4),
        ("2 K", 2048),
        ("0.3K", 308),
    ],
)
def test_sizes_are_powers_of_1024_rounded_up(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("4096", "4096M for MiB"),
        ("4GB", "4G (powers of 1024)"),
        ("4g", "4G"),
        ("big", "4G"),
        ("9999999T", "4G"),
        ("", "4G"),
    ],
)
def test_what_is_not_a_size_says_what_would_be(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0B"), (1023, "1023B"), (4096, "4K"), (1610612736, "1.5G"), (5 * 1024**5, "5120T")]
)
def test_size_format(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == text
