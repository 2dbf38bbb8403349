"""All skills of the configured folders. Changes in the folders are noticed while the daemon runs."""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic

import structlog

from gateway.skills.skill import MAX_LINE_BYTES, SKILL_FILE, Skill, SkillInvalid, read_skill

log = structlog.get_logger()

MAX_SKILLS = 200
_MAX_LISTED = 2_000
"""Entries of one configured folder."""
_MAX_HINTS = 100
"""Entries of a folder without skills, and of each of them, that are looked at to say where the skills are."""
_TTL = 5.0
"""Seconds for which the skills are used without a look at the folders."""
_INTRODUCTION = "Skills (load one before such a task):"
_ALL_LINES_BYTES = 600
"""What the lines of all skills of an agent take up together, as far as `_MIN_LINE_BYTES` permits."""
_MIN_LINE_BYTES = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFault:
    """A skill that cannot be used, or a folder without skills."""

    folder: Path
    reason: str
    """A sentence for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The result of reading one folder, which holds as long as `version` does."""

    version: tuple[int, ...]
    result: Skill | SkillFault


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSkills:
    skills: Mapping[str, Skill] = field(default_factory=dict)
    """By name, in this order."""
    faults: tuple[SkillFault, ...] = ()
    read: Mapping[Path, _Read] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSkills:
    """The skills of one agent at one moment."""

    skills: Mapping[str, Skill] = field(default_factory=dict)
    text: str = ""
    """All of them, as they are listed in the prompt."""

    @property
    def folders(self) -> dict[str, Path]:
        return {name: skill.folder for name, skill in self.skills.items()}


NO_SKILLS = AgentSkills()


class SkillLibrary:
    def __init__(self, folders: Sequence[Path] = (), *, clock: Callable[[], float] = monotonic) -> None:
        """Read all folders. Blocks: use a thread."""
        self._folders = tuple(folders)
        self._clock = clock
        self._chosen: dict[tuple[str, ...] | None, AgentSkills] = {}
        self._found = FoundSkills()
        self._fresh_until = 0.0
        if self._folders:
            self._use(find_skills(self._folders))

    async def refresh(self) -> None:
        """Look at the folders again, if the last look was not just now."""
        if not self._folders or self._clock() < self._fresh_until:
            return
        # Set before the look: turns that start during it use the skills from before.
        self._fresh_until = self._clock() + _TTL
        self._use(await asyncio.to_thread(find_skills, self._folders, self._found.read))

    def choose(self, patterns: tuple[str, ...] | None) -> AgentSkills:
        """Return the skills whose names match one of `patterns`, or all of them."""
        if patterns not in self._chosen:
            chosen = {
                name: skill
                for name, skill in self._found.skills.items()
                if patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)
            }
            self._chosen[patterns] = AgentSkills(skills=chosen, text=list_skills(chosen.values()))
        return self._chosen[patterns]

    def _use(self, found: FoundSkills) -> None:
        known, self._found = self._found, found
        self._fresh_until = self._clock() + _TTL
        if found.skills != known.skills:
            self._chosen.clear()
            log.info("skills_read", skills=len(found.skills))
        for fault in found.faults:
            if fault not in known.faults:
                log.warning("skill_unusable", folder=str(fault.folder), reason=fault.reason)


def list_skills(skills: Collection[Skill]) -> str:
    """Return the part of the prompt about skills. It is empty without any."""
    return "\n".join([_INTRODUCTION, *prompt_lines(skills)]) if skills else ""


def prompt_lines(skills: Collection[Skill]) -> list[str]:
    """Return a line for each skill. The more skills there are, the shorter they get: every request contains them."""
    most = max(_MIN_LINE_BYTES, min(MAX_LINE_BYTES, _ALL_LINES_BYTES // max(len(skills), 1)))
    return [skill.prompt_line(most) for skill in skills]


def find_skills(folders: Sequence[Path], known: Mapping[Path, _Read] | None = None) -> FoundSkills:
    """Read the skills of all `folders`; the first of two with the same name counts. Blocks: use a thread.

    Skills that have not changed since `known` are not read again.
    """
    skills: dict[str, Skill] = {}
    faults: list[SkillFault] = []
    read: dict[Path, _Read] = {}
    for folder in folders:
        try:
            candidates = _candidates(folder)
        except SkillInvalid as invalid:
            faults.append(SkillFault(folder=folder, reason=str(invalid)))
            continue
        for each in candidates:
            found = read[each] = _read_again(each, folder, (known or {}).get(each))
            result = found.result
            if isinstance(result, Skill) and (first := skills.get(result.name)) is not None:
                reason = f"There is another skill with the name {result.name} in {first.folder}. Rename one of them."
                result = SkillFault(folder=each, reason=reason)
            elif isinstance(result, Skill) and len(skills) >= MAX_SKILLS:
                reason = f"There are more than {MAX_SKILLS} skills. Remove some from skills.folders."
                result = SkillFault(folder=each, reason=reason)
            if isinstance(result, Skill):
                skills[result.name] = result
            else:
                faults.append(result)
    return FoundSkills(skills=skills, faults=tuple(faults), read=read)


def _candidates(folder: Path) -> list[Path]:
    """Return `folder` if it is a skill, or else the folders in it that are, in the order of their names."""
    try:
        if _has_skill_file(folder):
            return [folder]
        with os.scandir(folder) as found:
            names = sorted(entry.name for entry, _ in zip(found, range(_MAX_LISTED), strict=False))
    except FileNotFoundError as error:
        raise SkillInvalid("The folder does not exist. Create it, or correct skills.folders.") from error
    except NotADirectoryError as error:
        raise SkillInvalid("It is not a folder. Name the folder that contains the folders of the skills.") from error
    except OSError as error:
        raise SkillInvalid(f"The folder cannot be read: {error.strerror}. Check its permissions.") from error
    candidates = [folder / name for name in names if not name.startswith(".")]
    skills = [each for each in candidates if _has_skill_file(each)]
    if skills:
        return skills
    if (deeper := _find_folder_of_skills(candidates)) is not None:
        raise SkillInvalid(f"There are no skills in it, but in its folder {deeper.name}. Name {deeper} instead.")
    raise SkillInvalid(f"There are no skills in it. A skill is a folder with a {SKILL_FILE} file.")


def _find_folder_of_skills(candidates: Sequence[Path]) -> Path | None:
    """Return a folder that contains skills. Many git repositories have one."""
    for folder in candidates[:_MAX_HINTS]:
        try:
            with os.scandir(folder) as found:
                inner = [folder / entry.name for entry, _ in zip(found, range(_MAX_HINTS), strict=False)]
        except OSError:  # It is a file, or cannot be read.
            continue
        if any(_has_skill_file(each) for each in inner):
            return folder
    return None


def _has_skill_file(folder: Path) -> bool:
    """Return whether this is a folder that contains SKILL.md, or a file that looks like it."""
    try:
        return any(name.lower() == SKILL_FILE.lower() for name in os.listdir(folder))  # noqa: PTH208 - names suffice.
    except PermissionError:
        return True  # Reading it will say so.
    except OSError:  # It is a file or a broken link, or was removed meanwhile.
        return False


def _read_again(folder: Path, root: Path, known: _Read | None) -> _Read:
    version = _version(folder)
    if known is not None and known.version == version:
        return known
    real = Path(os.path.realpath(folder))
    result: Skill | SkillFault
    if not real.is_relative_to(os.path.realpath(root)):
        reason = "It is a link that leads out of its folder. Add the folder it leads to to skills.folders."
        return _Read(version=version, result=SkillFault(folder=folder, reason=reason))
    try:
        result, _ = read_skill(real)
    except SkillInvalid as invalid:
        result = SkillFault(folder=folder, reason=str(invalid))
    except OSError as error:
        result = SkillFault(folder=folder, reason=f"It cannot be read: {error.strerror}. Check its permissions.")
    return _Read(version=version, result=result)


def _version(folder: Path) -> tuple[int, ...]:
    """Return numbers that change with the skill's SKILL.md, and with the files beside it."""
    numbers: list[int] = []
    for path in (folder, folder / SKILL_FILE):
        try:
            found = path.stat()
        except OSError as error:
            numbers.append(error.errno or 0)
        else:
            numbers += [found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size]
    return tuple(numbers)
