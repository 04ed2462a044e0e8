from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.cluster.hostlist import MAX_NAMES, compress, expand
from resilient_launch.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3,7],gpu-[001-003]", ("n1", "n2", "n3", "n7", "gpu-001", "gpu-002", "gpu-003")),
        ("r[0-1]c[0-1]", ("r0c0", "r0c1", "r1c0", "r1c1")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("n[8-11]", ("n8", "n9", "n10", "n11")),
        ("n[1-2]-ib0,x", ("n1-ib0", "n2-ib0", "x")),
        ("n[3,1,3]", ("n3", "n1", "n3")),
        ("n[5-5]", ("n5",)),
        ("tux[1]", ("tux1",)),
    ],
)
def test_expand(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    ["n[", "n]", "n[1-2", "n[]", "n[a-b]", "n[2-1]", ",", "a,,b", "n[1-2]]", "a b", "n[[1-2]]", "n[1-2,]", "n[-1]"],
)
def test_what_is_no_hostlist_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        expand(text)


@pytest.mark.parametrize(
    "text",
    ["n[1-100001]", "n[1-400]m[1-400]", "n[0-999999999999999999]", "a[1-60000],b[1-60000]", "n[1-60000,1-60000]"],
)
def test_a_hostlist_of_too_many_names_is_refused_before_it_is_built(text: str) -> None:
    with pytest.raises(UsageError, match=str(MAX_NAMES)):
        expand(text)


def test_the_largest_hostlist_is_taken() -> None:
    assert len(expand(f"n[1-{MAX_NAMES}]")) == MAX_NAMES


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("n1",), "n1"),
        (("n3", "n1", "n2", "n7"), "n[1-3,7]"),
        (("n8", "n9", "n10", "n11"), "n[8-11]"),
        (("n08", "n09", "n10", "n8"), "n[8,08-10]"),
        (("login", "n1-ib", "n2-ib"), "login,n[1-2]-ib"),
        (("r0c0", "r0c1", "r1c0"), "r0c[0-1],r1c0"),
        (("n1", "n1"), "n1"),
    ],
)
def test_compress(names: tuple[str, ...], text: str) -> None:
    assert compress(names) == text


@pytest.mark.parametrize("name", ["", "a,b", "a[1]", "a b", "a\n"])
def test_a_name_that_a_hostlist_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        compress([name])


@given(st.lists(st.from_regex(r"[a-z]{0,2}[0-9]{0,4}(-?[a-z]{1,2}[0-9]{0,3})?", fullmatch=True).filter(bool)))
def test_compress_then_expand_is_the_set(names: list[str]) -> None:
    expanded = expand(compress(names))
    assert len(expanded) == len(set(expanded))
    assert set(expanded) == set(names)


@given(st.text(alphabet="n1-[],09 a", max_size=20) | st.text(max_size=20))
def test_any_text_expands_or_is_refused(text: str) -> None:
    try:
        names = expand(text)
    except UsageError:
        return
    assert set(expand(compress(names))) == set(names)
