"""The tool that loads a skill: its instructions, or one of its files."""

import asyncio
from pathlib import PurePosixPath

from config import ShellSettings
from gateway.agent.toolbox.files import read_file
from gateway.agent.toolbox.shell import run_in_sandbox, sandbox_command
from gateway.agent.toolbox.workspace import command_folder
from gateway.agent.tools import Tool, ToolContext, ToolFailed, tool
from gateway.sandbox.bubblewrap import SKILLS, SandboxUnavailable
from gateway.skills.skill import Skill, SkillInvalid, read_skill
from gateway.text import excerpt

_NO_SHELL = "Its scripts cannot run here, because you have no shell. Do without them."
_NO_SANDBOX = "Its scripts cannot run here, because they need a sandbox and this machine has none. Do without them."


def make_use_skill(shell: ShellSettings | None) -> Tool:
    """Return the tool for an agent with this shell, or without one."""

    @tool(concurrent=True)
    async def use_skill(context: ToolContext, name: str) -> str:
        """Load a skill, or name/path in it."""
        skill, *inner = PurePosixPath(name.strip()).parts or ("",)
        if skill not in context.skills:
            offer = f"There are: {', '.join(context.skills)}." if context.skills else "There are no skills any more."
            raise ToolFailed(f"There is no skill {excerpt(skill, 80)!r}. {offer}")
        if inner:
            return await read_file.run(context, {"path": str(PurePosixPath(SKILLS, skill, *inner))})
        try:
            found, body = await asyncio.to_thread(read_skill, context.skills[skill])
        except SkillInvalid as invalid:
            raise ToolFailed(f"The skill {skill} cannot be used now. {invalid} The operator can fix that.") from invalid
        about = [f"Skill {skill}. Its files are in {SKILLS}/{skill}, read-only."]
        if found.compatibility:
            about.append(f"Its author says about what it needs: {found.compatibility}")
        if found.has_scripts:
            about.append(await _say_how_scripts_run(context, found, shell))
        return f"[{' '.join(about)}]\n\n{body}"

    return use_skill


async def _say_how_scripts_run(context: ToolContext, skill: Skill, shell: ShellSettings | None) -> str:
    if shell is None:
        return _NO_SHELL
    try:
        folder = await asyncio.to_thread(command_folder, context)
        await run_in_sandbox(sandbox_command(":", folder, shell), shell)
    except (SandboxUnavailable, ToolFailed):
        return _NO_SANDBOX
    return f"Run its scripts with the shell, like {SKILLS}/{skill.name}/scripts/NAME."
