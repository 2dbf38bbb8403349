from pathlib import Path

from tests.daemon_process import gatehouse, write_config
from tests.skills.harness import add_skill


def test_check_lists_the_skills_and_every_problem(tmp_path: Path) -> None:
    add_skill(tmp_path / "skills", "pdf", "Reads PDF files.")
    config = write_config(tmp_path)
    config.write_text(f'{config.read_text()}\n[skills]\nfolders = ["{tmp_path}/skills"]\n')
    good = gatehouse("skills", "check", home=tmp_path)
    assert (good.returncode, good.stdout, good.stderr) == (0, "- pdf: Reads PDF files.\n1 skill.\n", "")
    for number in range(9):
        add_skill(tmp_path / "skills", f"skill-{number}")
    # Ten skills have shorter lines than one, as in the prompt.
    lines = gatehouse("skills", "check", home=tmp_path).stdout.splitlines()
    assert lines[1:] == [
        *(f"- skill-{number}: Extracts text and tables from PDF files, fills in" for number in range(9)),
        "10 skills.",
    ]
    (tmp_path / "skills/pdf/SKILL.md").write_text("broken")
    bad = gatehouse("skills", "check", "skills/pdf", home=tmp_path)
    assert (bad.returncode, bad.stdout) == (1, "0 skills, 1 problem.\n")
    assert f"{tmp_path}/skills/pdf: SKILL.md does not begin with front matter" in bad.stderr
