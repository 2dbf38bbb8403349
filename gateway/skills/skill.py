"""One skill: reads its SKILL.md, checks it against the specification, and makes its line of the prompt.

The specification is https://agentskills.io/specification. All functions block: use a thread.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import GatehouseError
from gateway.private_files import NotAFile, open_private
from gateway.text import clean, printable

SKILL_FILE = "SKILL.md"
MAX_FILE_BYTES = 48_000
"""A whole SKILL.md fits into the result of one tool call."""
MAX_LINE_BYTES = 100
"""Of a skill in the prompt, with its name."""
_MAX_FRONT_BYTES = 16_000
_MAX_NAME_CHARS = 64
_MAX_DESCRIPTION_CHARS = 1024
_MAX_COMPATIBILITY_CHARS = 500
_MAX_ENTRIES = 2_000
"""Files and folders of one skill."""

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FRONT = re.compile(r"---[ \t]*\n(.*?\n)?---[ \t]*(?:\n|$)", re.DOTALL)
_SCRIPTS = "scripts"


class SkillInvalid(GatehouseError):
    """Its text is a sentence for the operator: what is wrong with the skill, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    name: str
    description: str
    """One line."""
    compatibility: str = ""
    """What the skill needs, in the words of its author."""
    folder: Path
    """Without links."""
    has_scripts: bool = False

    def prompt_line(self, most: int = MAX_LINE_BYTES) -> str:
        """Return the name and the description in at most `most` bytes, cut at a word."""
        line = f"- {self.name}: {self.description}".encode()
        if len(line) <= most:
            return line.decode()
        start = f"- {self.name}:"
        cut = line[:most].decode(errors="ignore")
        whole_words = cut if line[len(cut.encode()) :].startswith(b" ") else cut.rpartition(" ")[0]
        # Scripts like Chinese have no spaces, and a long name leaves no room for a word.
        return (whole_words if len(whole_words) > len(start) else cut).rstrip(" ,;:-") or cut


def read_skill(folder: Path) -> tuple[Skill, str]:
    """Read the skill in `folder`, which has no links in its path. Return it with its instructions.

    Raises `SkillInvalid`.
    """
    front, body = _divide(_read_skill_file(folder))
    name = _text(front, "name", _MAX_NAME_CHARS, is_required=True)
    if not _NAME.fullmatch(name):
        raise SkillInvalid("`name` may only have lowercase letters, digits and single hyphens between them.")
    if name != folder.name:
        raise SkillInvalid(f"`name` is {name}, but the folder is called {folder.name}. Give both the same name.")
    skill = Skill(
        name=name,
        description=_text(front, "description", _MAX_DESCRIPTION_CHARS, is_required=True),
        compatibility=_text(front, "compatibility", _MAX_COMPATIBILITY_CHARS),
        folder=folder,
        has_scripts=(folder / _SCRIPTS).is_dir(),
    )
    if not body.strip():
        raise SkillInvalid(f"{SKILL_FILE} has no instructions below the front matter.")
    for link in _links_that_leave(folder):
        raise SkillInvalid(f"The link {link} leads out of the folder of the skill. Replace it by a copy of the file.")
    return skill, body.strip("\n")


def _read_skill_file(folder: Path) -> str:
    real = Path(os.path.realpath(folder / SKILL_FILE))
    if not real.is_relative_to(folder):
        raise SkillInvalid(f"{SKILL_FILE} is a link that leads out of the folder of the skill. Replace it by the file.")
    try:
        with os.fdopen(open_private(real), "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        near = [each for each in os.listdir(folder) if each.lower() == SKILL_FILE.lower()]  # noqa: PTH208 - names suffice.
        hint = f" Rename {near[0]} to {SKILL_FILE}." if near else ""
        raise SkillInvalid(f"There is no {SKILL_FILE}.{hint}") from error
    except NotAFile as error:
        raise SkillInvalid(f"{SKILL_FILE} cannot be read. {error.strerror}.") from error
    except OSError as error:
        raise SkillInvalid(f"{SKILL_FILE} cannot be read: {error.strerror}. Check its permissions.") from error
    if len(content) > MAX_FILE_BYTES:
        raise SkillInvalid(
            f"{SKILL_FILE} is larger than {MAX_FILE_BYTES:,} bytes. Move details into files in references/."
        )
    try:
        return clean(content.decode("utf-8-sig").replace("\r\n", "\n"))
    except UnicodeDecodeError as error:
        raise SkillInvalid(f"{SKILL_FILE} is not text in UTF-8. Save it as UTF-8.") from error


def _divide(text: str) -> tuple[dict[str, object], str]:
    """Return the front matter and the instructions below it."""
    # Only a check of skills reads YAML, so most starts do without the parser.
    import yaml  # noqa: PLC0415 - see above.

    found = _FRONT.match(text)
    if found is None:
        raise SkillInvalid(f"{SKILL_FILE} does not begin with front matter: YAML between two lines with `---`.")
    if len((found[1] or "").encode()) > _MAX_FRONT_BYTES:
        raise SkillInvalid(f"The front matter is larger than {_MAX_FRONT_BYTES:,} bytes. Move text below it.")
    try:
        # This loader makes nothing but texts, lists and dicts. A name like `1e3` or `no` stays a text.
        front = yaml.load(found[1] or "", Loader=yaml.BaseLoader)  # noqa: S506 - see above.
    except yaml.MarkedYAMLError as error:
        # One line more than the parser counts, for the `---`.
        where = f" in line {error.problem_mark.line + 2}" if error.problem_mark else ""
        hint = "Put a value that contains `: ` or `#` in quotes."
        raise SkillInvalid(f"The front matter is not valid YAML{where}: {error.problem}. {hint}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SkillInvalid("The front matter is not valid YAML.") from error
    if not isinstance(front, dict):
        raise SkillInvalid("The front matter has no keys. Write at least `name: ...` and `description: ...`.")
    return front, text[found.end() :]


def _text(front: dict[str, object], key: str, most: int, *, is_required: bool = False) -> str:
    value = front.get(key, "")
    if not isinstance(value, str):
        raise SkillInvalid(f"`{key}` must be a text.")
    line = " ".join(printable(value).split())
    if is_required and not line:
        raise SkillInvalid(f"`{key}` is missing in the front matter.")
    if len(line) > most:
        raise SkillInvalid(f"`{key}` has {len(line):,} characters; at most {most:,} are allowed. Shorten it.")
    return line


def _links_that_leave(folder: Path) -> Iterator[str]:
    """Yield the links below `folder` that lead out of it. Raises `SkillInvalid` if the folder is too large to check."""
    entries = 0
    for place, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each != ".git"]
        entries += len(folders) + len(files)
        if entries > _MAX_ENTRIES:
            raise SkillInvalid(f"It has more than {_MAX_ENTRIES:,} files and folders. Remove what no one needs.")
        for name in (*folders, *files):
            path = Path(place, name)
            # `Path.is_symlink` raises for an entry of a folder that may not be searched.
            if os.path.islink(path) and not Path(os.path.realpath(path)).is_relative_to(folder):  # noqa: PTH114 - see above.
                yield str(path.relative_to(folder))
