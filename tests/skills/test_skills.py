import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.skills.library import SkillLibrary, find_skills, list_skills
from gateway.skills.skill import Skill, read_skill
from tests.skills.harness import DESCRIPTION, add_skill


def test_a_skill_with_every_key_of_the_specification_is_read(tmp_path: Path) -> None:
    front = (
        "license: MIT\ncompatibility: Needs poppler\nallowed-tools: Bash(git:*)\nmetadata:\n  version: '1'\nnew: 1\n"
    )
    folder = add_skill(tmp_path, "pdf", "Reads\u202e PDF files.\n  In two lines.", front=front)
    (folder / "scripts").mkdir()
    skill, body = read_skill(folder)
    assert skill == Skill(
        name="pdf",
        description="Reads PDF files. In two lines.",
        compatibility="Needs poppler",
        folder=folder,
        has_scripts=True,
    )
    assert body == "Read the form first."


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"# PDF\n", "does not begin with front matter"),
        (b"---\nname: pdf\n", "does not begin with front matter"),
        (b"---\n---\nBody", "has no keys"),
        (b"---\n- a\n---\nBody", "has no keys"),
        (
            b"---\nname: pdf\ndescription: Use when: always\n---\nBody",
            r"not valid YAML in line 3: .*Put a value .* in quotes",
        ),
        (b"---\nname: pdf\ndescription: &a [*a]\n---\nBody", "not valid YAML in line 3"),
        (b"---\nname: pdf\ndescription: [a]\n---\nBody", "`description` must be a text"),
        (b"---\n" + b"[" * 9_000 + b"\n---\nBody", "not valid YAML"),
        (b"---\nname: \x07\n---\nBody", "not valid YAML"),
        (b"---\ndescription: x\n---\nBody", "`name` is missing"),
        (b"---\nname: pdf\n---\nBody", "`description` is missing"),
        (b"---\nname: pdf\ndescription:\n---\nBody", "`description` is missing"),
        (b"---\nname: PDF\ndescription: x\n---\nBody", "lowercase letters, digits and single hyphens"),
        (b"---\nname: ../etc\ndescription: x\n---\nBody", "lowercase letters, digits and single hyphens"),
        (b"---\nname: a--b\ndescription: x\n---\nBody", "lowercase letters, digits and single hyphens"),
        (b"---\nname: " + b"a" * 65 + b"\ndescription: x\n---\nBody", "`name` has 65 characters; at most 64"),
        (b"---\nname: other\ndescription: x\n---\nBody", "`name` is other, but the folder is called pdf"),
        (b"---\nname: pdf\ndescription: " + b"x" * 1025 + b"\n---\nBody", "has 1,025 characters; at most 1,024"),
        (b"---\nname: pdf\ndescription: x\ncompatibility: " + b"x" * 501 + b"\n---\nBody", "`compatibility` has 501"),
        (b"---\nname: pdf\ndescription: x\n---\n \n", "no instructions below"),
        (b"---\nname: pdf\ndescription: x\n---\n" + b"x" * 48_000, "larger than 48,000 bytes"),
        (b"---\nname: pdf\ndescription: \xff\n---\nBody", "not text in UTF-8"),
    ],
)
def test_a_faulty_skill_file_is_one_sentence_and_the_other_skills_work(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    add_skill(tmp_path, "good")
    (add_skill(tmp_path, "pdf") / "SKILL.md").write_bytes(content)
    found = find_skills([tmp_path])
    assert list(found.skills) == ["good"]
    (fault,) = found.faults
    assert fault.folder == tmp_path / "pdf"
    assert re.search(sentence, fault.reason), fault.reason


def test_links_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    outside = add_skill(tmp_path / "outside", "linked")
    (tmp_path / "secret").write_text("canary")
    skills = tmp_path / "skills"
    (add_skill(skills, "deep") / "references").mkdir()
    (skills / "deep/references/a.md").symlink_to(tmp_path / "secret")
    (add_skill(skills, "file") / "SKILL.md").unlink()
    (skills / "file/SKILL.md").symlink_to(outside / "SKILL.md")
    (skills / "linked").symlink_to(outside)
    (add_skill(skills, "inner") / "copy.md").symlink_to("SKILL.md")
    found = find_skills([skills])
    assert list(found.skills) == ["inner"]
    assert {fault.folder.name: fault.reason.partition(".")[0] for fault in found.faults} == {
        "deep": "The link references/a",
        "file": "SKILL",
        "linked": "It is a link that leads out of its folder",
    }


def test_everything_that_is_no_readable_skill_is_named(tmp_path: Path) -> None:
    skills = tmp_path / "skills"
    add_skill(skills, "pdf")
    twin = add_skill(tmp_path / "more", "pdf")
    (add_skill(skills, "lower") / "SKILL.md").rename(skills / "lower/skill.md")
    os.mkfifo(add_skill(skills, "pipe").joinpath("SKILL.md").rename(skills / "pipe/old").with_name("SKILL.md"))
    (skills / "no-skill").mkdir()
    (skills / "README.md").write_text("About these skills")
    (tmp_path / "empty").mkdir()
    add_skill(tmp_path / "checkout/agent-skills", "sheets")
    (tmp_path / "checkout/LICENSE").write_text("MIT")
    folders = [tmp_path / name for name in ("more", "empty", "gone", "checkout")]
    found = find_skills([skills, *folders, skills / "README.md"])
    assert list(found.skills) == ["pdf"]
    reasons = {str(fault.folder.relative_to(tmp_path)): fault.reason for fault in found.faults}
    assert reasons == {
        "skills/lower": "There is no SKILL.md. Rename skill.md to SKILL.md.",
        "skills/pipe": "SKILL.md cannot be read. It is a named pipe, not a file.",
        "more/pdf": f"There is another skill with the name pdf in {skills / 'pdf'}. Rename one of them.",
        "empty": "There are no skills in it. A skill is a folder with a SKILL.md file.",
        "checkout": "There are no skills in it, but in its folder agent-skills. "
        f"Name {tmp_path / 'checkout/agent-skills'} instead.",
        "gone": "The folder does not exist. Create it, or correct skills.folders.",
        "skills/README.md": "It is not a folder. Name the folder that contains the folders of the skills.",
    }
    assert list(find_skills([twin]).skills) == ["pdf"]


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user who is not root: root can search every folder")
def test_folders_that_cannot_be_searched_are_named(tmp_path: Path) -> None:
    """Their names can be listed, and nothing else."""
    add_skill(tmp_path / "skills", "pdf")
    more = add_skill(tmp_path / "more", "forms") / "references"
    more.mkdir()
    (more / "a.md").write_text("a")
    closed = (tmp_path / "skills", more)
    for folder in closed:
        folder.chmod(0o600)
    try:
        found = find_skills([tmp_path / "skills", tmp_path / "more"])
    finally:
        for folder in closed:
            folder.chmod(0o700)
    assert list(found.skills) == ["forms"]
    assert [fault.reason for fault in found.faults] == [
        "SKILL.md cannot be read: Permission denied. Check its permissions."
    ]


async def test_a_change_is_noticed_while_the_daemon_runs(tmp_path: Path) -> None:
    folder = add_skill(tmp_path, "pdf")
    clock = [0.0]
    library = SkillLibrary([tmp_path], clock=lambda: clock[0])
    assert list(library.choose(None).skills) == ["pdf"]
    (folder / "SKILL.md").write_text("broken")
    add_skill(tmp_path, "later")
    await library.refresh()
    assert list(library.choose(None).skills) == ["pdf"]
    clock[0] = 10.0
    with capture_logs() as events:
        await library.refresh()
    assert list(library.choose(None).skills) == ["later"]
    assert [event["event"] for event in events] == ["skills_read", "skill_unusable"]
    clock[0] = 20.0
    with capture_logs() as events:  # A fault is logged once.
        await library.refresh()
    assert events == []


def test_an_agent_gets_the_skills_that_its_patterns_name(tmp_path: Path) -> None:
    for name in ("pdf", "report-daily", "report-weekly"):
        add_skill(tmp_path, name)
    library = SkillLibrary([tmp_path])
    assert list(library.choose(("report-*",)).skills) == ["report-daily", "report-weekly"]
    assert library.choose(("nothing",)).text == library.choose(()).text == ""
    assert library.choose(("pdf",)).folders == {"pdf": tmp_path / "pdf"}


def test_a_line_is_cut_at_a_word_and_more_skills_have_shorter_lines(tmp_path: Path) -> None:
    skill = Skill(name="pdf", description=DESCRIPTION, folder=tmp_path)
    assert (
        skill.prompt_line()
        == "- pdf: Extracts text and tables from PDF files, fills in forms and merges documents. Use it for"
    )
    assert skill.prompt_line(50) == "- pdf: Extracts text and tables from PDF files"
    for number in (1, 10, 50):
        _, *lines = list_skills([skill] * number).splitlines()
        assert len(lines) == number
        assert max(len(line.encode()) for line in lines) <= 100
    assert len(list_skills([skill] * 10).encode()) < 650


@given(st.from_regex(r"[a-z]{1,64}", fullmatch=True), st.text(min_size=1), st.integers(48, 100))
def test_a_line_never_exceeds_its_bytes(name: str, description: str, most: int) -> None:
    text = " ".join(description.encode(errors="replace").decode().split())
    line = Skill(name=name, description=text, folder=Path("/")).prompt_line(most)
    assert len(line.encode()) <= most
    assert "\n" not in line
