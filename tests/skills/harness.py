"""Set-up shared by tests of skills."""

from pathlib import Path

DESCRIPTION = "Extracts text and tables from PDF files, fills in forms and merges documents. Use it for every PDF."


def add_skill(
    folder: Path, name: str, description: str = DESCRIPTION, *, body: str = "Read the form first.", front: str = ""
) -> Path:
    """Write a skill into `folder`, and return its own folder."""
    skill = folder / name
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n{front}---\n\n{body}\n")
    return skill
