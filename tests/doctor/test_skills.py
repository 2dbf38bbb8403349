from pathlib import Path

from config import Settings
from gateway.doctor.finding import Level
from gateway.doctor.skills import check_skills
from tests.skills.harness import add_skill


def test_doctor_reports_faulty_skills_and_patterns_without_a_skill(tmp_path: Path) -> None:
    add_skill(tmp_path / "skills", "pdf")

    def check(**agent: object) -> list[tuple[str, Level]]:
        tables = {"skills": {"folders": [tmp_path / "skills"]}, "agents": {"main": agent}}
        return [(finding.about, finding.level) for finding in check_skills(Settings.model_validate(tables))]

    assert check_skills(Settings()) == []
    assert check(skills=["pdf"]) == [("skills", Level.OK)]
    assert check(skills=["pdf", "exel"]) == [("agents.main.skills", Level.WARNING)]
    add_skill(tmp_path / "skills", "Bad")
    assert check() == [("skills", Level.WARNING)]
