from resilient_launch.policy.suspects import FORGET_S, Blame, suspects

NOW = 1e6


def test_a_silent_node_is_avoided_at_once_and_forgotten_in_time() -> None:
    blame = Blame(ended_at=NOW, certain=("n3",))
    assert suspects([blame], now=NOW) == ["n3"]
    assert suspects([blame], now=NOW + FORGET_S + 1) == []


def test_a_node_where_ranks_die_is_avoided_the_second_time() -> None:
    blames = [Blame(ended_at=NOW, possible="n2"), Blame(ended_at=NOW + 1, possible="n1")]
    assert suspects(blames, now=NOW) == []
    assert suspects([*blames, Blame(ended_at=NOW + 2, possible="n2")], now=NOW) == ["n2"]


def test_the_newest_blame_comes_first() -> None:
    blames = [Blame(ended_at=NOW - 5, certain=("n1",)), Blame(ended_at=NOW, certain=("n2",)), Blame(ended_at=NOW + 1)]
    assert suspects(blames, now=NOW + 2) == ["n2", "n1"]
