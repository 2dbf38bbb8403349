"""The command line as a whole, as a shell meets it."""

import subprocess
from pathlib import Path

import pytest

from gateway.cli import COMMANDS
from tests.running import COMMAND, environment, gatehouse, write_config


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
        (["rum"], "There is no command `rum`. Did you mean `run`? `gatehouse --help` says more."),
        (["--frobnicate"], "Unrecognized arguments: --frobnicate. `gatehouse --help` says more."),
        (["--config"], "Argument --config: expected one argument. `gatehouse --help` says more."),
        (["run", "fast"], "Unrecognized arguments: fast. `gatehouse run --help` says more."),
        (["config"], "The following arguments are required: COMMAND. `gatehouse config --help` says more."),
        (["config", "show", "more"], "Unrecognized arguments: more. `gatehouse config --help` says more."),
        (
            ["config", "set", "http.port"],
            "The following arguments are required: VALUE. `gatehouse config set --help` says more.",
        ),
    ],
)
def test_wrong_usage_is_one_sentence_and_2(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    wrong = gatehouse(*arguments, home=tmp_path)
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (2, "", f"gatehouse: {sentence}\n")


@pytest.mark.parametrize("arguments", [[], ["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_is_0(tmp_path: Path, arguments: list[str]) -> None:
    helped = gatehouse(*arguments, home=tmp_path)
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith("usage: gatehouse")


@pytest.mark.parametrize("command", ["config show", "config path", "config schema"])
def test_an_answer_that_cannot_be_written_is_a_sentence(tmp_path: Path, command: str) -> None:
    write_config(tmp_path)
    unheard = in_a_shell(f'"$0" {command} >/dev/full', tmp_path)
    assert unheard.returncode == 1
    assert unheard.stderr.startswith("gatehouse: The system would not have it: No space left on device (")
    assert unheard.stderr.count("\n") == 1


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&- <&-", "2>/dev/full"])
def test_a_missing_stream_is_no_trouble(tmp_path: Path, redirection: str) -> None:
    write_config(tmp_path)
    assert in_a_shell(f'"$0" config show {redirection}', tmp_path).returncode == 0


def test_a_complaint_that_cannot_be_written_keeps_its_exit_code(tmp_path: Path) -> None:
    assert in_a_shell('"$0" --config gone.toml config show 2>/dev/full', tmp_path).returncode == 78


def test_a_reader_that_leaves_early_is_not_bothered(tmp_path: Path) -> None:
    assert in_a_shell('"$0" config schema | head -1', tmp_path).stderr == ""
