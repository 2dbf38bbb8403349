"""Mistakes in a config file, told to the person who has to mend them."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ConfigError", "Mistake", "Mistakes", "Problem", "did_you_mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake. `key` is empty when the file as a whole is at fault. No field ever holds a secret's value."""

    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        said = f"{self.key}: {self.message}" if self.key else self.message
        return f"{said}\n    {self.hint}" if self.hint else said


class ConfigError(Exception):
    """Everything that is wrong with the settings, at once. Its text is the block to show; the exit code is 78."""

    def __init__(self, problems: Iterable[Problem], *, path: Path | None = None) -> None:
        self.problems = tuple(problems)
        self.path = path
        super().__init__(_block(self.problems, path))


def _block(problems: Sequence[Problem], path: Path | None) -> str:
    where = str(path) if path else "The settings"
    count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
    return "\n".join([f"{where}: {count}", *(f"  {problem}" for problem in problems)])


class Mistake(ValueError):
    """Raised by a validator of the model; becomes a `Problem` where pydantic noticed it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Mistakes(ValueError):
    """Raised by a check across tables, which knows the keys itself."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("the tables do not fit together")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question naming the nearest known word, or nothing when none is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean `{near[0]}`?" if near else ""
