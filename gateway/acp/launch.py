"""Everything that is needed to start the program of a coding agent for one session."""

from dataclasses import dataclass
from pathlib import Path

from config import AgentSettings
from gateway.acp.presets import Preset, environment
from gateway.acp.programs import AgentProgram
from gateway.repos.worktrees import RepoWorkspace
from gateway.sandbox.bubblewrap import SandboxLimits
from gateway.sandbox.program import SandboxedProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLaunch:
    agent: str
    session: str
    settings: AgentSettings
    """With the model that was chosen for the session."""
    preset: Preset
    program: AgentProgram
    workspace: RepoWorkspace
    home: Path
    attachments: Path
    data_dir: Path
    """Never visible to the program, but for its worktree."""
    known_id: str | None = None
    """The ACP session that an earlier program had, if its record is as the transcript."""
    service: Path | None = None
    """The socket of the sandbox service."""

    def sandboxed(self) -> SandboxedProgram:
        sandbox, program = self.settings.sandbox, self.program
        return SandboxedProgram(
            argv=program.argv,
            env={**self.workspace.env, **environment(self.settings)},
            path=program.path,
            cwd=self.workspace.folder,
            writable=self.workspace.writable,
            readable=(*program.readable, *sandbox.readable),
            hidden=(self.data_dir,),
            home=self.home,
            attachments=self.attachments,
            network=sandbox.network,
            limits=SandboxLimits(memory_bytes=sandbox.memory_mb * 1024**2, processes=sandbox.max_processes),
        )
