"""The command line as a whole, run by a shell."""

import re
import subprocess
from pathlib import Path

import pytest

from gateway.cli import COMMANDS
from tests.daemon_process import COMMAND, DaemonProcess, environment, gatehouse, write_config
from tests.forks.process import forked


def in_a_shell(line: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run `line` with $0 as our command."""
    return subprocess.run(
        ["sh", "-c", line, COMMAND],  # noqa: S607 - any sh
        cwd=home,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rum"], "Unknown command `rum`. Did you mean `run`? Run `gatehouse --help` for usage."),
        (["--frobnicate"], "Unrecognized arguments: --frobnicate. Run `gatehouse --help` for usage."),
        (["--config"], "Argument --config: expected one argument. Run `gatehouse --help` for usage."),
        (["run", "fast"], "Unrecognized arguments: fast. Run `gatehouse run --help` for usage."),
        (["config"], "The following arguments are required: COMMAND. Run `gatehouse config --help` for usage."),
        (["config", "show", "more"], "Unrecognized arguments: more. Run `gatehouse config --help` for usage."),
        (
            ["config", "set", "http.port"],
            "The following arguments are required: VALUE. Run `gatehouse config set --help` for usage.",
        ),
    ],
)
def test_wrong_usage_prints_one_sentence_and_exits_with_2(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    wrong = gatehouse(*arguments, home=tmp_path)
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (2, "", f"gatehouse: {sentence}\n")


@pytest.mark.parametrize("arguments", [[], ["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_exits_with_0(tmp_path: Path, arguments: list[str]) -> None:
    helped = gatehouse(*arguments, home=tmp_path)
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith("usage: gatehouse")


@pytest.mark.parametrize("command", ["config show", "config path", "config schema"])
def test_full_disk_is_reported_in_one_line(tmp_path: Path, command: str) -> None:
    write_config(tmp_path)
    unheard = in_a_shell(f'"$0" {command} >/dev/full', tmp_path)
    assert unheard.returncode == 1
    assert unheard.stderr.startswith("gatehouse: System error: No space left on device (")
    assert unheard.stderr.count("\n") == 1


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&- <&-", "2>/dev/full"])
def test_closed_standard_streams_do_no_harm(tmp_path: Path, redirection: str) -> None:
    write_config(tmp_path)
    assert in_a_shell(f'"$0" config show {redirection}', tmp_path).returncode == 0


def test_exit_code_is_kept_if_the_error_message_cannot_be_written(tmp_path: Path) -> None:
    assert in_a_shell('"$0" --config gone.toml config show 2>/dev/full', tmp_path).returncode == 78


def test_broken_pipe_prints_nothing(tmp_path: Path) -> None:
    assert in_a_shell('"$0" config schema | head -1', tmp_path).stderr == ""


def test_a_configuration_that_an_agent_wrote_into_the_current_folder_is_not_used(tmp_path: Path) -> None:
    """It could name a program, which would run outside the sandbox with the rights of the operator."""
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    home.mkdir()
    workspace.mkdir()
    planted = workspace / "gatehouse.toml"
    planted.write_text(f'http.port = 0\n[mcp.evil]\ncommand = ["touch", "{tmp_path}/executed"]\n')
    planted.chmod(0o600)
    arguments = ["chat", "--once", "/tools"]
    done = forked([str(COMMAND), *arguments], cwd=workspace, env=environment(home), stdin="", timeout=60)
    assert done.returncode == 0
    assert "evil" not in done.stdout
    assert not (tmp_path / "executed").exists()
    assert (home / ".gatehouse" / "sessions").is_dir()
    assert f"{planted} is not used" in done.stderr
    assert done.stderr.endswith(f"--config {planted}\n")

    arguments = ["config", "check", "--config", str(planted)]
    named = forked([str(COMMAND), *arguments], cwd=workspace, env=environment(home), stdin="", timeout=60)
    assert (named.returncode, named.stdout, named.stderr) == (0, f"OK: {planted}\n", "")


def test_every_command_that_starts_a_gateway_names_its_configuration(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    with DaemonProcess(tmp_path) as daemon:
        assert daemon.wait_for("config_loaded")["file"] == str(path)
        daemon.ready()
    gatehouse("chat", "--once", "hi", home=tmp_path)
    assert str(path) in (tmp_path / "data" / "chat.log").read_text()
    assert gatehouse("config", "check", home=tmp_path).stdout == f"OK: {path}\n"
    assert str(path) in gatehouse("doctor", "--local", home=tmp_path).stdout


def test_the_readme_calls_the_command_in_one_way() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    code = "\n".join(re.findall(r"`[^`]+`|^ {4,}.*$", text, flags=re.MULTILINE))
    called = set(re.findall(rf"(\S*gatehouse) (?:{'|'.join(COMMANDS)})\b", code))
    assert {word.strip("`(") for word in called} == {"gatehouse"}
