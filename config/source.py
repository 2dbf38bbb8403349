"""What a config file's values are read against: its folder and the environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationInfo

from config.problems import Mistake

__all__ = ["Source", "expand", "source_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Travels through validation as its context.

    With `resolves` false, references to secrets are taken on trust: a command that edits the file runs
    in a shell that may not have the daemon's environment. `warnings` collects what is odd but no mistake.
    `is_exposed` says that other users can read the file.
    """

    environ: Mapping[str, str]
    folder: Path
    resolves: bool = True
    is_exposed: bool = False
    warnings: list[str] = field(default_factory=list)

    def warn(self, warning: str) -> None:
        if warning not in self.warnings:
            self.warnings.append(warning)

    def path(self, text: str | Path) -> Path:
        """Return `text` as an absolute path: `~` is the home folder, anything relative lies beside the file."""
        path = Path(text)
        if path.parts[:1] == ("~",) and self.environ.get("HOME"):
            path = Path(self.environ["HOME"], *path.parts[1:])
        return self.folder / expand(path)


def expand(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # How pathlib says it.
        raise Mistake(f"{path}: there is no such home folder", "write the path in full") from None


def source_of(info: ValidationInfo) -> Source | None:
    """Return the context of this validation; settings built in code have none."""
    return info.context if isinstance(info.context, Source) else None
