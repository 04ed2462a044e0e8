"""Command lines, read as GNU getopt_long reads them: Slurm's commands take abbreviations, -n4 and -n 4 alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Takes = Literal["none", "value", "maybe"]


class OptionError(Exception):
    """getopt's own words for what is wrong, without the program's name."""


@dataclass(frozen=True)
class Option:
    """One option: its long name, its letter if any, and whether it takes a value."""

    name: str
    letter: str = ""
    takes: Takes = "value"


def table(text: str) -> tuple[Option, ...]:
    """Options from words such as ``nodes:N=`` (value), ``quiet:Q`` (none), ``export=?`` (maybe a value)."""
    options = []
    for word in text.split():
        takes: Takes = "maybe" if word.endswith("=?") else "value" if word.endswith("=") else "none"
        name, _, letter = word.rstrip("=?").partition(":")
        options.append(Option(name, letter, takes))
    return tuple(options)


def parse(
    words: Sequence[str], options: Sequence[Option], *, permute: bool = True
) -> tuple[list[tuple[str, str | None]], list[str]]:
    """The options in their order and the words that are none. Without ``permute`` the first such word ends the options.

    Raises OptionError.
    """
    found: list[tuple[str, str | None]] = []
    rest: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word == "--":
            rest.extend(queue)
            break
        if word.startswith("--"):
            found.append(_long(word, queue, options))
        elif word.startswith("-") and word != "-":
            found.extend(_short(word[1:], queue, options))
        else:
            rest.append(word)
            if not permute:
                rest.extend(queue)
                break
    return found, rest


def _long(word: str, queue: list[str], options: Sequence[Option]) -> tuple[str, str | None]:
    name, equals, value = word[2:].partition("=")
    exact = [option for option in options if option.name == name]
    matches = exact or [option for option in options if option.name.startswith(name)]
    if not matches:
        raise OptionError(f"unrecognized option '{word}'")
    if len(matches) > 1:
        listed = " ".join(f"'--{option.name}'" for option in matches)
        raise OptionError(f"option '--{name}' is ambiguous; possibilities: {listed}")
    option = matches[0]
    if option.takes == "none":
        if equals:
            raise OptionError(f"option '--{option.name}' doesn't allow an argument")
        return option.name, None
    if equals:
        return option.name, value
    if option.takes == "maybe":
        return option.name, None
    if not queue:
        raise OptionError(f"option '--{option.name}' requires an argument")
    return option.name, queue.pop(0)


def _short(letters: str, queue: list[str], options: Sequence[Option]) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    while letters:
        letter, letters = letters[0], letters[1:]
        option = next((option for option in options if option.letter == letter), None)
        if option is None:
            raise OptionError(f"invalid option -- '{letter}'")
        if option.takes == "none":
            found.append((option.name, None))
            continue
        if letters:
            found.append((option.name, letters))
        elif option.takes == "maybe":
            found.append((option.name, None))
        elif queue:
            found.append((option.name, queue.pop(0)))
        else:
            raise OptionError(f"option requires an argument -- '{letter}'")
        break
    return found


def split_line(text: str, *, source: str, number: int) -> list[str]:
    """The words of an #SBATCH line: quotes and backslashes as Slurm reads them, ``#`` starts a comment.

    Raises OptionError for a quote that is never closed.
    """
    words: list[str] = []
    current: list[str] | None = None
    quote = ""
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\" and position < len(text):
            current = [*(current or []), text[position]]
            position += 1
        elif quote:
            if character == quote:
                quote = ""
            else:
                current = [*(current or []), character]
        elif character in "\"'":
            quote, current = character, current or []
        elif character.isspace():
            if current is not None:
                words.append("".join(current))
            current = None
        elif character == "#":
            break
        else:
            current = [*(current or []), character]
    if quote:
        raise OptionError(f"{source}: line {number}: Unmatched `{quote}` in [{text}]")
    if current is not None:
        words.append("".join(current))
    return words


def script_words(script: str, source: str) -> list[str]:
    """Every word of the script's #SBATCH lines, which end with its first command. Raises OptionError."""
    words: list[str] = []
    for number, line in enumerate(script.split("\n"), start=1):
        if line.startswith("#SBATCH"):
            words.extend(split_line(line[len("#SBATCH") :], source=source, number=number))
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return words
