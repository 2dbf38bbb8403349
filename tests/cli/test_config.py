import json
import tomllib
from pathlib import Path

import pytest

from gateway.cli import main

CANARY = "canary-5f1c9e7a-never-to-be-seen"


@pytest.fixture(autouse=True)
def no_configured_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATEHOUSE_CONFIG", raising=False)


def config(path: Path | None, *arguments: str) -> int:
    """Run `gatehouse config` in this process."""
    return main([*([] if path is None else ["--config", str(path)]), "config", *arguments])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "gatehouse.toml"
    path.write_text(f'[http]\nport = 1\ntoken = "{CANARY}"\n', encoding="utf-8")
    path.chmod(0o600)
    return path


def test_show_prints_the_file_and_toml_without_secrets(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert config(path, "show") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"# {path}\n")
    assert tomllib.loads(out)["http"] | {"port": 1, "token": "***"} == tomllib.loads(out)["http"]
    assert CANARY not in out


def test_show_works_without_the_secrets(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text('[http]\ntoken = "env:ONLY_THE_DAEMON_HAS_IT"', encoding="utf-8")
    assert config(path, "show") == 0
    assert 'token = "***"' in capsys.readouterr().out


def test_check_says_ok_and_warns(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text("[http]\nport = 0\n[session]\nbacklog_limit = 0", encoding="utf-8")
    assert config(path, "check") == 0
    captured = capsys.readouterr()
    assert captured.out == f"OK: {path}\n"
    assert captured.err.startswith("warning: session.backlog_limit")


def test_check_prints_every_mistake_and_exits_with_78(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text('[http]\nprot = 1\ntoken = "env:NOT_THERE"', encoding="utf-8")
    assert config(path, "check") == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"gatehouse: {path}: 2 problems\n")
    assert "did you mean `port`?" in captured.err
    assert "env:NOT_THERE" in captured.err


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_missing_file_exits_with_78(tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert config(tmp_path / "gone.toml", command) == 78
    assert "the file given by --config does not exist" in capsys.readouterr().err


def test_without_a_file_the_defaults_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config(None, "show") == 0
    assert tomllib.loads(capsys.readouterr().out)["gateway"]["data_dir"] == str(tmp_path / ".gatehouse")


def test_path_prints_the_file_in_use(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GATEHOUSE_CONFIG", str(path))
    assert config(None, "path") == 0
    assert capsys.readouterr() == (f"{path}\n", "")


def test_path_prints_the_file_that_would_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert config(None, "path") == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path}/home/.gatehouse/gatehouse.toml\n"
    assert "doesn't exist yet" in captured.err


def test_schema_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert config(None, "schema") == 0
    assert "gateway" in json.loads(capsys.readouterr().out)["properties"]


def test_set_writes_and_does_not_repeat_the_value(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert config(path, "set", "channels.telegram.token", f"1:{CANARY}") == 0
    assert tomllib.loads(path.read_text(encoding="utf-8"))["channels"]["telegram"]["token"] == f"1:{CANARY}"
    captured = capsys.readouterr()
    assert str(path) in captured.out
    assert CANARY not in captured.out + captured.err


@pytest.mark.parametrize("limit", ["-1", "many"])
def test_set_prints_the_warnings_about_the_new_value(
    path: Path, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path.chmod(0o644)
    assert config(path, "set", "session.backlog_limit", limit) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("warning: session.backlog_limit")
    assert captured.err.count("\n") == 1  # The file became private, so there is nothing to say about that.


def test_set_of_an_unknown_key_exits_with_78_and_keeps_the_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = path.read_bytes()
    assert config(path, "set", "http.prot", "1") == 78
    assert path.read_bytes() == before
    assert "did you mean `port`?" in capsys.readouterr().err


def test_set_creates_the_named_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "gatehouse.toml"
    assert config(path, "set", "http.port", "0") == 0
    assert path.exists()


def test_unset_removes_a_key(path: Path) -> None:
    assert config(path, "unset", "http.port") == 0
    assert tomllib.loads(path.read_text(encoding="utf-8")) == {"http": {"token": CANARY}}
    assert config(path, "unset", "http.port") == 78


def test_check_lists_every_error_that_would_prevent_a_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gatehouse.toml"
    path.write_text(
        f"""
        gateway.data_dir = "{tmp_path}/data"
        http.port = 0
        agents.writer = {{ backend = "acp", command = ["x"] }}
        agents.coder = {{ tools = ["fly"] }}
        channels.carrier_pigeon = {{}}
        channels.telegram = {{}}
        """,
        encoding="utf-8",
    )
    path.chmod(0o600)
    assert config(path, "check") == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    head, *mistakes = captured.err.splitlines()
    assert head == f"gatehouse: {path}: 4 problems"
    keys = [
        "agents.writer",
        "agents.coder.tools",
        "channels.carrier_pigeon",
        "channels.telegram.token",
    ]
    assert [mistake.split()[0].rstrip(":") for mistake in mistakes] == keys
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("arguments", [("--config", "{path}", "show"), ("show", "--config", "{path}")])
def test_config_option_works_after_the_command_and_the_subcommand(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert config(path / "wrong", *(argument.format(path=path) for argument in arguments)) == 0
    assert capsys.readouterr().out.startswith(f"# {path}\n")


def test_show_hides_all_texts_in_channel_options(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text(f'[channels.x.options]\nkey = "{CANARY}"\ndeep = [{{ er = "{CANARY}" }}]\nfast = true\ntries = 3')
    assert config(path, "show") == 0
    out = capsys.readouterr().out
    shown = tomllib.loads(out)["channels"]["x"]["options"]
    assert shown == {"key": "***", "deep": [{"er": "***"}], "fast": True, "tries": 3}
    assert CANARY not in out
