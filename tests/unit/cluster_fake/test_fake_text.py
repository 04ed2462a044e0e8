"""The small languages of Slurm: times, host lists, options, #SBATCH lines, file names. No cluster needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.cluster.fake import timefmt, wire
from resilient_launch.cluster.fake.commands import layout
from resilient_launch.cluster.fake.commands.request import memory_mb, signal_number, warn_signal
from resilient_launch.cluster.fake.filenames import Names
from resilient_launch.cluster.fake.model import WarnSignal
from resilient_launch.cluster.fake.options import OptionError, parse, script_words, split_line, table


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("1:30", 120),
        ("0:30", 60),
        ("02:00:00", 7200),
        ("1-0", 86400),
        ("1-2:30", 95400),
        ("1-02:03:04", 93840),
        ("UNLIMITED", None),
        ("-1", None),
    ],
)
def test_time_limits(text: str, seconds: int | None) -> None:
    assert timefmt.parse_limit_s(text) == seconds


@pytest.mark.parametrize("text", ["", "abc", "1-", "1:2:3:4", "1.5", "-5", "1h"])
def test_bad_time_limits(text: str) -> None:
    with pytest.raises(ValueError, match="invalid time"):
        timefmt.parse_limit_s(text)


@pytest.mark.parametrize(
    ("text", "moment"), [("now", 1000.0), ("now+60", 1060.0), ("now+2hours", 8200.0), ("NOW+1minute", 1060.0)]
)
def test_relative_moments(text: str, moment: float) -> None:
    assert timefmt.parse_moment(text, 1000.0) == moment


def test_absolute_moments_come_back_as_written() -> None:
    assert timefmt.moment(timefmt.parse_moment("2026-05-04T03:02:01", 0.0)) == "2026-05-04T03:02:01"
    assert timefmt.moment(0) == "Unknown"


@pytest.mark.parametrize(
    ("seconds", "long", "short"),
    [
        (5, "00:00:05", "0:05"),
        (3725, "01:02:05", "1:02:05"),
        (90061, "1-01:01:01", "1-01:01:01"),
        (None, "UNLIMITED", "UNLIMITED"),
    ],
)
def test_durations(seconds: int | None, long: str, short: str) -> None:
    assert (timefmt.duration(seconds), timefmt.short_duration(seconds)) == (long, short)


OPTIONS = table("nodes:N= ntasks:n= nice=? parsable quiet:Q hold:H output:o= no-kill:k=? no-requeue")


@pytest.mark.parametrize(
    ("words", "found", "rest"),
    [
        (["--nodes=2", "job"], [("nodes", "2")], ["job"]),
        (["--nodes", "2", "job"], [("nodes", "2")], ["job"]),
        (["-N2", "-n", "4", "job", "-N3"], [("nodes", "2"), ("ntasks", "4")], ["job", "-N3"]),
        (["-QH", "-ofile"], [("quiet", None), ("hold", None), ("output", "file")], []),
        (["--nice", "--nice=5", "--par"], [("nice", None), ("nice", "5"), ("parsable", None)], []),
        (["--", "-N2"], [], ["-N2"]),
        (["-"], [], ["-"]),
    ],
)
def test_options(words: list[str], found: list[tuple[str, str | None]], rest: list[str]) -> None:
    assert parse(words, OPTIONS, permute=False) == (found, rest)


def test_options_after_words_count_where_permuted() -> None:
    assert parse(["7", "--quiet"], OPTIONS) == ([("quiet", None)], ["7"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--foo=1"], "unrecognized option '--foo=1'"),
        (["-z"], "invalid option -- 'z'"),
        (["--nodes"], "option '--nodes' requires an argument"),
        (["-N"], "option requires an argument -- 'N'"),
        (["--parsable=1"], "option '--parsable' doesn't allow an argument"),
        (["--no-"], "option '--no-' is ambiguous; possibilities: '--no-kill' '--no-requeue'"),
    ],
)
def test_bad_options(words: list[str], text: str) -> None:
    with pytest.raises(OptionError) as error:
        parse(words, OPTIONS)
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (" --job-name='a b' -N 2", ["--job-name=a b", "-N", "2"]),
        (' --comment="say \\"hi\\""', ['--comment=say "hi"']),
        (" --comment='it'\"'\"'s'", ["--comment=it's"]),
        (" --output=a\\ b # the rest", ["--output=a b"]),
        (" --comment=''", ["--comment="]),
        (" --comment=$(id)", ["--comment=$(id)"]),
    ],
)
def test_sbatch_lines(line: str, words: list[str]) -> None:
    assert split_line(line, source="job.sh", number=3) == words


def test_an_unclosed_quote_is_slurms_error() -> None:
    with pytest.raises(OptionError) as error:
        split_line(' -J "open', source="job.sh", number=2)
    assert str(error.value) == 'job.sh: line 2: Unmatched `"` in [ -J "open]'


def test_sbatch_lines_end_with_the_first_command() -> None:
    script = "#!/bin/bash\n#SBATCH -N2\n# a comment\n\n#SBATCH --hold\necho\n#SBATCH -N9\n"
    assert script_words(script, "job.sh") == ["-N2", "--hold"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("USR2@90", WarnSignal(signum=12, lead_s=90)),
        ("B:SIGUSR1@30", WarnSignal(signum=10, lead_s=30, batch=True)),
        ("R:10", WarnSignal(signum=10, lead_s=60)),
        ("BR:TERM@0", WarnSignal(signum=15, lead_s=0, batch=True)),
    ],
)
def test_signal_option(text: str, wanted: WarnSignal) -> None:
    assert warn_signal(text) == wanted


@pytest.mark.parametrize("text", ["FOO@3", "USR1@x", "USR1@99999", "", "@3"])
def test_bad_signal_option(text: str) -> None:
    with pytest.raises(ValueError, match=r"signal"):
        warn_signal(text)


def test_signal_names_and_memory() -> None:
    assert [signal_number(text) for text in ("KILL", "sigterm", "12")] == [9, 15, 12]
    assert [memory_mb(text) for text in ("500", "2G", "2GB", "1500K", "1T")] == [500, 2048, 2048, 2, 1048576]
    with pytest.raises(ValueError, match="memory"):
        memory_mb("1.5G")


NAMES = Names(
    job_id=7, job_name="my job", user="me", node="n2", node_index=1, task=3, step="0", array_id=6, array_task=12
)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("slurm-%j.out", "/work/slurm-7.out"),
        ("%4j_%A_%n_%2t_%N_%s.log", "/work/0007_6_1_03_n2_0.log"),
        ("/abs/%x-%u-%J", "/abs/my job-me-7.0"),
        ("100%%", "/work/100%"),
        ("%3a", "/work/012"),
        ("a\\%j", "/work/a%j"),
        ("%q", "/work/%q"),
    ],
)
def test_file_names(pattern: str, path: str) -> None:
    assert NAMES.path(pattern, "/work") == path


def test_format_strings() -> None:
    fields = {"i": "7", "j": "a long name"}
    assert layout("%i %.5i|%5i|%.4j|%4j%%", fields) == "7     7|7    |a lo|a lo%"


@given(st.lists(st.lists(st.binary(max_size=40), max_size=4), max_size=5), st.integers(1, 7))
def test_frames_survive_any_cutting(frames: list[list[bytes]], size: int) -> None:
    data = b"".join(wire.encode(frame) for frame in frames)
    decoder = wire.Decoder()
    received = [frame for start in range(0, len(data), size) for frame in decoder.feed(data[start : start + size])]
    assert received == frames


def test_a_frame_of_absurd_size_is_refused() -> None:
    with pytest.raises(ValueError, match="a frame of"):
        wire.Decoder().feed(b"\xff" * 8)
