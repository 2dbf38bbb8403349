"""Checks of the folders of skills."""

from fnmatch import fnmatchcase

from config import Settings
from gateway.doctor.finding import Finding, ok, warning
from gateway.skills.library import find_skills
from gateway.text.plain import count
from gateway.turns.agents import may_use_skills


def check_skills(settings: Settings) -> list[Finding]:
    """Read all skills, as the daemon does. Blocks: use a thread."""
    if not settings.skills.folders:
        return []
    found = find_skills(settings.skills.folders)
    findings = [
        warning("skills", f"{fault.folder} cannot be used: {fault.reason}", "Fix it; `gatehouse skills check` checks.")
        for fault in found.faults
    ]
    for name, agent in settings.agents.items():
        patterns = agent.skills if agent.skills and may_use_skills(agent, settings) else ()
        for pattern in patterns:
            if not any(fnmatchcase(skill, pattern) for skill in found.skills):
                message = f"No skill is called `{pattern}`."
                findings.append(warning(f"agents.{name}.skills", message, "Correct the name, or remove it."))
    return findings or [ok("skills", f"{count(len(found.skills), 'skill')} can be used.")]
