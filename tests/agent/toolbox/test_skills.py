import sys
from pathlib import Path

import pytest
from msgspec import structs

from config import ShellSettings
from gateway.agent.toolbox.files import list_files, read_file, write_file
from gateway.agent.toolbox.named_files import digest_named_files
from gateway.agent.toolbox.shell import make_shell
from gateway.agent.toolbox.skills import make_use_skill
from gateway.agent.tools import ToolContext, ToolFailed
from gateway.conversation import ToolCall
from tests.sandbox.harness import needs_sandbox, service
from tests.skills.harness import add_skill

SHELL = ShellSettings.model_validate({"enabled": True, "memory_mb": 256, "max_processes": 32})


@pytest.fixture
def skilled(context: ToolContext, tmp_path: Path) -> ToolContext:
    """Return a context with the skill `pdf`, which has a script and a reference."""
    folder = add_skill(tmp_path / "skills", "pdf", front="compatibility: Needs sh.\nallowed-tools: Bash\n")
    for inner, text in (("scripts/count.sh", "echo counted $1; pwd"), ("references/forms.md", "Forms have fields.")):
        (folder / inner).parent.mkdir()
        (folder / inner).write_text(text)
    return structs.replace(context, find_skills=lambda: {"pdf": folder})


async def test_the_instructions_and_the_files_of_a_skill_are_loaded(skilled: ToolContext) -> None:
    use_skill = make_use_skill(None)
    about, body = (await use_skill.run(skilled, {"name": "pdf"})).split("\n\n")
    assert body == "Read the form first."
    assert "/skills/pdf" in about
    assert "Needs sh." in about
    assert "scripts cannot run here, because you have no shell" in about
    assert str(skilled.skills["pdf"]) not in about
    assert await use_skill.run(skilled, {"name": "pdf/references/forms.md"}) == "Forms have fields."
    assert await read_file.run(skilled, {"path": "/skills/pdf/references/forms.md"}) == "Forms have fields."
    assert "count.sh" in await list_files.run(skilled, {"path": "/skills/pdf/scripts"})


@pytest.mark.parametrize(
    "name", ["excel", "", "/", "..", "/etc/passwd", "pdf/../../secret", "pdf/missing", "pdf/link", "pdf/"]
)
async def test_nothing_else_can_be_loaded(skilled: ToolContext, tmp_path: Path, name: str) -> None:
    (tmp_path / "skills/secret").write_text("canary")
    (skilled.skills["pdf"] / "link").symlink_to(tmp_path / "skills/secret")  # Added after the check of the skill.
    use_skill = make_use_skill(None)
    if name == "pdf/":
        (skilled.skills["pdf"] / "link").unlink()
        assert "Read the form first." in await use_skill.run(skilled, {"name": name})
        return
    with pytest.raises(ToolFailed) as failed:
        await use_skill.run(skilled, {"name": name})
    assert str(tmp_path) not in str(failed.value)


async def test_a_skill_that_was_broken_since_is_one_sentence(skilled: ToolContext) -> None:
    (skilled.skills["pdf"] / "SKILL.md").write_text("broken")
    with pytest.raises(ToolFailed, match="The skill pdf cannot be used now"):
        await make_use_skill(None).run(skilled, {"name": "pdf"})


async def test_tools_cannot_change_a_skill_and_approvals_know_its_files(skilled: ToolContext) -> None:
    with pytest.raises(ToolFailed, match="cannot be changed"):
        await write_file.run(skilled, {"path": "/skills/pdf/SKILL.md", "content": "x"})
    calls = [
        ToolCall(id="c", name="shell", input={"command": command})
        for command in ("sh /skills/pdf/scripts/count.sh", "cd /skills/pdf && sh scripts/count.sh")
    ]
    before = [digest_named_files(skilled, call)["/skills/pdf/scripts/count.sh"] for call in calls]
    (skilled.skills["pdf"] / "scripts/count.sh").write_text("rm -rf /workspace")
    after = [digest_named_files(skilled, call)["/skills/pdf/scripts/count.sh"] for call in calls]
    assert not {*before} & {*after}


@needs_sandbox
@pytest.mark.parametrize("by_service", [False, True])
async def test_a_script_runs_in_the_sandbox_and_its_folder_is_read_only(
    skilled: ToolContext,
    tmp_path: Path,
    by_service: bool,  # noqa: FBT001 - a parameter.
) -> None:
    command = "sh /skills/pdf/scripts/count.sh 3; touch /skills/pdf/x /skills/x || echo read-only; ls /skills"
    if by_service:
        async with service(tmp_path / "sandbox.sock"):
            shell = SHELL.model_copy(update={"sandbox_socket": tmp_path / "sandbox.sock"})
            about = await make_use_skill(shell).run(skilled, {"name": "pdf"})
            output = await make_shell(shell).run(skilled, {"command": command})
    else:
        about = await make_use_skill(SHELL).run(skilled, {"name": "pdf"})
        output = await make_shell(SHELL).run(skilled, {"command": command})
    assert "/skills/pdf/scripts/NAME" in about
    assert output.startswith("counted 3\n/workspace\n")
    assert output.endswith("read-only\npdf")
    assert not (skilled.skills["pdf"] / "x").exists()


@needs_sandbox
async def test_the_git_folder_of_a_skill_is_hidden(skilled: ToolContext) -> None:
    """The URL of its remote may contain a password."""
    folder = skilled.skills["pdf"]
    (folder / ".git").mkdir()
    (folder / ".git/config").write_text("url = https://ada:canary@git.example.org/pdf.git")
    (folder / "link").symlink_to(".git/config")
    for path in ("/skills/pdf/.git/config", "/skills/pdf/link", "/skills/pdf/scripts/../.git/config"):
        with pytest.raises(ToolFailed, match="There is no"):
            await read_file.run(skilled, {"path": path})
    with pytest.raises(ToolFailed, match="There is no"):
        await list_files.run(skilled, {"path": "/skills/pdf/.git"})
    command = "cat /skills/pdf/.git/config /skills/pdf/link; touch /skills/pdf/.git/x; cat /skills/pdf/SKILL.md"
    output = await make_shell(SHELL).run(skilled, {"command": command})
    assert "Read the form first." in output
    assert "Read-only" in output
    assert "canary" not in output


@pytest.mark.parametrize(
    "command",
    [
        "sh /skills/pdf/scripts/count.sh > ran",
        "sh {folder}/scripts/count.sh > ran",
        "here=$PWD; cd {folder.parent}; sh pdf/scripts/count.sh > $here/ran",
    ],
)
async def test_no_script_runs_without_a_sandbox_even_if_commands_do(
    skilled: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/prlimit").symlink_to("/usr/bin/prlimit")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    shell = SHELL.model_copy(update={"allow_unsandboxed": True})
    assert "this machine has none" in await make_use_skill(shell).run(skilled, {"name": "pdf"})
    command = command.format(folder=skilled.skills["pdf"])
    with pytest.raises(ToolFailed, match="Scripts of skills run only in a sandbox"):
        await make_shell(shell).run(skilled, {"command": command})
    assert not (skilled.workspace / "ran").exists()
    if sys.platform == "linux":
        assert "hi" in await make_shell(shell).run(skilled, {"command": "echo hi"})
