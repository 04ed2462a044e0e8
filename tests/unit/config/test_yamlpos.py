import pytest

from resilient_launch.config.issues import ConfigErrors, Source
from resilient_launch.config.yamlpos import MAX_BYTES, Mapping, Scalar, Sequence, decode_bytes, parse, plain_kind


def tree(text: str) -> Mapping:
    node, issues = parse(Source("a.yaml", text))
    assert isinstance(node, Mapping) and not issues
    return node


def refusal(text: str) -> tuple[int | None, int | None, str]:
    with pytest.raises(ConfigErrors) as caught:
        parse(Source("a.yaml", text))
    (issue,) = caught.value.issues
    return issue.line, issue.column, f"{issue.what}, {issue.why}"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((word, "bool") for word in ("true", "True", "TRUE", "false", "False", "FALSE")),
        *((word, "null") for word in ("", "~", "null", "Null", "NULL")),
        *((word, "int") for word in ("0", "012", "-7", "+7", "0o17", "0xfF")),
        *((word, "float") for word in ("1.", ".5", "1e3", "1e-3", "-1.5E+4", ".inf", "-.INF", ".nan")),
        *((word, "str") for word in ("no", "yes", "on", "off", "y", "n", "tRUE", "nUll", "trueish", "~x")),
        *(
            (word, "str")
            for word in ("12:30:00", "1:30", "190:20:30.15", "1_000", "0b11", "0o8", "1e", "2-4", "<<", "=")
        ),
        *((word, "str") for word in ("2024-01-01", "2001-12-14t21:59:43.10-05:00", "٣", "1\n", ".", "-", "+.5x")),
    ],
)
def test_core_schema_and_no_more(text: str, kind: str) -> None:
    assert plain_kind(text) == kind


def test_quotes_and_blocks_are_text_whatever_they_say() -> None:
    node = tree("a: 'true'\nb: \"1\"\nc: |\n  2\nd: >-\n  3\ne: 4\n")
    kinds = [entry.value.kind for entry in node.entries if isinstance(entry.value, Scalar)]
    assert kinds == ["str", "str", "str", "str", "int"]


def test_the_text_of_a_scalar_is_as_written() -> None:
    node = tree("a: [1e-3, 0x10, True, 012, ~, 'x']").entries[0].value
    assert isinstance(node, Sequence)
    assert [item.text for item in node.items if isinstance(item, Scalar)] == ["1e-3", "0x10", "True", "012", "~", "x"]


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_places_are_right_with_any_line_break_and_a_byte_order_mark(line_break: str, start: str) -> None:
    node = tree(start + line_break.join(["a: 1", "", "b:", "  - x", "  - {c: y}"]))
    entry = node.get("b")
    assert entry is not None and (entry.mark.line, entry.mark.column) == (3, 1)
    assert isinstance(entry.value, Sequence)
    inner = entry.value.items[1]
    assert isinstance(inner, Mapping)
    value = inner.entries[0].value.mark
    assert (value.line, value.column, value.source.line(value.line)) == (5, 9, "  - {c: y}")


def test_every_duplicate_is_reported_and_the_first_is_kept() -> None:
    node, issues = parse(Source("a.yaml", "a: 1\nb: {c: 1, c: 2}\na: 2\n'a': 3\n"))
    assert [(issue.line, issue.column, issue.key) for issue in issues] == [(2, 11, "b.c"), (3, 1, "a"), (4, 1, "a")]
    assert isinstance(node, Mapping) and [entry.key for entry in node.entries] == ["a", "b"]
    first = node.entries[0].value
    assert isinstance(first, Scalar) and first.text == "1"


@pytest.mark.parametrize("text", ["? [a]\n: b", "? {a: b}\n: c", "'': b"])
def test_keys_are_words(text: str) -> None:
    _, issues = parse(Source("a.yaml", text))
    assert [issue.what for issue in issues] == ["unusable key"]


@pytest.mark.parametrize(
    ("text", "line", "column", "part"),
    [
        ("a: 1\n---\nb: 2", 2, 1, "second document"),
        ("a: !!python/object:os.system [x]", 1, 4, "tag"),
        ("a: !!int 3", 1, 4, "tag"),
        ("a: ! 3", 1, 4, "tag"),
        ("a: 1\nb:\n\tc: 2", 3, 1, "\\t"),
        ("a: [1, 2", 1, 9, "expected ',' or ']'"),
        ("a: b: c", 1, 5, "mapping values"),
        ("a: 'x", 1, 6, "end of stream"),
        ("a: *x", 1, 4, "alias *x"),
        ("a: &a [*a]", 1, 8, "alias *a"),
        ("a: \x00", 1, 4, "U+0000"),
        ("a: 1\nbc: \x1b[0m", 2, 5, "U+001B"),
        ('a: "\\UFFFFFFFF"', 1, 7, "out of range"),
        ("%YAML 1." + "9" * 5000 + "\n---\na: 1", 1, 9, "out of range"),
        ("a: " + "[" * 100_000, 1, 28, "nested too deep"),
        ("- " * 50_000, 1, 51, "nested too deep"),
    ],
)
def test_what_cannot_be_read_has_a_place(text: str, line: int, column: int, part: str) -> None:
    at_line, at_column, message = refusal(text)
    assert part in message
    assert (at_line, at_column) == (line, column)


def test_an_alias_stands_for_its_value_and_counts_as_all_of_it() -> None:
    node = tree("a: &x [1, 2]\nb: *x")
    assert node.entries[0].value == node.entries[1].value
    levels = [f"k{level}: &k{level} [{', '.join([f'*k{level - 1}'] * 10)}]" for level in range(1, 6)]
    assert "too many values" in refusal("\n".join(["k0: &k0 [1]", *levels]))[2]
    assert "too many values" in refusal("\n".join(f"k{index}: 1" for index in range(6000)))[2]


def test_bytes_that_are_not_utf8_have_a_place() -> None:
    with pytest.raises(ConfigErrors) as caught:
        decode_bytes("ä: 1\nbü: ".encode() + b"\xff\n", "a.yaml")
    (issue,) = caught.value.issues
    assert (issue.line, issue.column, issue.what) == (2, 5, "byte 0xff")
    with pytest.raises(ConfigErrors):
        decode_bytes("a: 1".encode("utf-16"), "a.yaml")


def test_a_file_that_is_too_long() -> None:
    decode_bytes(b"#" * MAX_BYTES, "a.yaml")
    with pytest.raises(ConfigErrors, match="too long"):
        decode_bytes(b"#" * (MAX_BYTES + 1), "a.yaml")


@pytest.mark.parametrize("text", ["", "# only this\n", "---\n...\n"])
def test_nothing(text: str) -> None:
    node, issues = parse(Source("a.yaml", text))
    assert (node is None or (isinstance(node, Scalar) and node.kind == "null")) and not issues
