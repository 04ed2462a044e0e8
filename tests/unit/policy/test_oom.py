import pytest

from resilient_launch.policy.oom import MemoryCounters, is_out_of_memory, parse_v1, parse_v2


def counted(num_kills: int | None, num_limit_hits: int = 0) -> MemoryCounters:
    return MemoryCounters(num_kills=num_kills, num_limit_hits=num_limit_hits)


@pytest.mark.parametrize(
    ("before", "after", "exits", "expected"),
    [
        (counted(2), counted(3), {0: -9}, True),
        (counted(2), counted(3), {0: 1}, True),  # a data loader was killed, and its worker failed
        (counted(2), counted(2), {0: -9}, False),  # somebody else's SIGKILL
        (counted(2), counted(2, 50), {0: -9}, False),  # at the limit, but nothing was killed for it
        (counted(2), counted(3), {0: 0, 1: 0}, False),
        (counted(None), counted(None, 4), {0: -9}, True),  # a kernel that does not count kills
        (counted(None), counted(None, 4), {0: 1}, False),
        (counted(None), counted(None), {0: -9}, False),
        (None, counted(1), {0: -9}, False),
        (counted(1), None, {0: -9}, False),
    ],
)
def test_out_of_memory(
    before: MemoryCounters | None, after: MemoryCounters | None, exits: dict[int, int], expected: bool
) -> None:
    assert is_out_of_memory(before, after, exits) is expected


def test_parsing() -> None:
    assert parse_v1("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "17") == counted(3, 17)
    assert parse_v1("oom_kill_disable 0\nunder_oom 0\n", "17") == counted(None, 17)
    assert parse_v2("low 0\nhigh 0\nmax 12\noom 4\noom_kill 2\noom_group_kill 0\n") == counted(2, 12)
    assert parse_v2("low 0\nhigh 0\nmax 12\noom 4\n") == counted(None, 12)
