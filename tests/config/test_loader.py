"""Finding, reading and validating the config file."""

from pathlib import Path

import pytest

from config import ConfigError, destination, find, find_ignored, load
from tests.config.harness import problems_of, write_config


def test_without_a_file_the_defaults_are_loaded(tmp_path: Path) -> None:
    loaded = load(None, {"HOME": str(tmp_path)})
    assert (loaded.path, loaded.warnings) == (None, ())
    assert loaded.settings.gateway.data_dir == tmp_path / ".gatehouse"
    assert loaded.settings.gateway.workspace_root == tmp_path / ".gatehouse" / "workspace"


def test_relative_paths_start_at_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").touch()
    path = write_config(tmp_path, '[gateway]\ndata_dir = "data"\n[agents.main]\nprompt_file = "prompt.md"')
    read = load(path, {}).settings
    assert read.gateway.data_dir == tmp_path / "data"
    assert read.agents["main"].prompt_file == tmp_path / "prompt.md"


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "gatehouse.toml"
    path.write_bytes(b"\xef\xbb\xbf[http]\r\nport = 1\r\n")
    assert load(path, {}).settings.http.port == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[http]\nport = \n", "is not valid TOML: Invalid value (at line 2, column 8)"),
        (b"a = 1\na = 2\n", "is not valid TOML: Cannot overwrite a value (at line 2"),
        (b'a = "\xff"', "is not UTF-8 text"),
        (b"a = " + b"[" * 5000, "is nested too deeply"),
        (b"channels.x.options" + b".a" * 5000 + b" = 1", "is nested too deeply"),
        (b"http.port = 0x" + b"f" * 5000, "is not valid TOML: a whole number does not fit into 64 bits"),
        (b"a = " + b"1" * 5000, "is not valid TOML: Exceeds the limit"),
    ],
)
def test_invalid_toml_is_reported_with_its_position(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "gatehouse.toml"
    path.write_bytes(content)
    assert problems_of(path)[""].message.startswith(expected)


def test_a_folder_instead_of_the_file_is_reported(tmp_path: Path) -> None:
    assert problems_of(tmp_path)[""].message == "is a folder, not a file"


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "gone.toml")[""].message == "cannot be read: no such file or directory"


def test_a_missing_prompt_file_is_reported(tmp_path: Path) -> None:
    path = write_config(tmp_path, '[agents.main]\nprompt_file = "gone.md"')
    assert "does not exist" in problems_of(path)["agents.main.prompt_file"].message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[session]\ndm_scope = "per-peer"', "the same id on different platforms"),
        ("[session]\nbacklog_limit = 0", "session.backlog_limit is below 1; 20 is used instead"),
        ('[session]\nbacklog_limit = "many"', "session.backlog_limit is not a whole number; 20 is used instead"),
        ("[session]\nbacklog_limit = 7.5", "session.backlog_limit is not a whole number; 20 is used instead"),
        ("[session]\nbacklog_limit = true", "session.backlog_limit is not a whole number; 20 is used instead"),
        ('[channels.telegram]\ndm_policy = "allowlist"', "no one can write"),
        ('[[bindings]]\nagent = "main"\nchannel = "telegram"', "never matches"),
    ],
)
def test_a_valid_but_suspicious_setting_causes_a_warning(tmp_path: Path, text: str, expected: str) -> None:
    (warning,) = load(write_config(tmp_path, text), {}).warnings
    assert expected in warning


def test_identity_links_silence_the_warning_about_equal_ids(tmp_path: Path) -> None:
    text = '[session]\ndm_scope = "per-peer"\nidentity_links = { alice = ["telegram:1", "discord:2"] }'
    assert load(write_config(tmp_path, text), {}).warnings == ()


def test_the_environment_overrides_the_idle_timeout(tmp_path: Path) -> None:
    path = write_config(tmp_path, "[session]\nidle_minutes = 5\nttl_days = 7")
    session = load(path, {"AGENT_SESSION_IDLE_TIMEOUT": "45"}).settings.session
    assert (session.idle_minutes, session.ttl_days) == (45, 7)
    assert load(path, {"AGENT_SESSION_IDLE_TIMEOUT": "45"}).settings.api.idle_minutes == 45
    assert load(path, {}).settings.api.idle_minutes == 30
    assert "session.idle_minutes" in problems_of(path, {"AGENT_SESSION_IDLE_TIMEOUT": "soon"})


def test_the_environment_overrides_the_folder_of_the_repos(tmp_path: Path) -> None:
    path = write_config(tmp_path, '[gateway]\nworkspace_root = "/srv/work"')
    assert load(path, {}).settings.gateway.root_of_repos == Path("/srv/work")
    assert load(path, {"AGENT_WORKSPACE_ROOT": "/srv/src"}).settings.gateway.root_of_repos == Path("/srv/src")
    assert load(write_config(tmp_path, ""), {}).settings.gateway.root_of_repos is None


@pytest.mark.parametrize("name", ["api", "openai"])
def test_a_channel_cannot_have_the_name_of_the_api(tmp_path: Path, name: str) -> None:
    path = write_config(tmp_path, f"[channels.{name}]\nenabled = true")
    assert f"the name `{name}` belongs to the HTTP API" in str(problems_of(path, {}))


def test_find_prefers_the_named_file_to_the_usual_places(tmp_path: Path) -> None:
    cwd, home = tmp_path / "cwd", tmp_path / "home"
    explicit, from_environment, usual = tmp_path / "explicit.toml", tmp_path / "env.toml", home / ".gatehouse"
    for place in (explicit, from_environment, cwd / "gatehouse.toml", usual / "gatehouse.toml"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    environ = {"GATEHOUSE_CONFIG": "../env.toml"}
    assert find(explicit, environ, cwd, home) == explicit
    assert find(None, environ, cwd, home) == cwd / "../env.toml"
    assert find(None, {"GATEHOUSE_CONFIG": ""}, cwd, home) == usual / "gatehouse.toml"
    assert find(None, {"GATEHOUSE_CONFIG": "~/.gatehouse/gatehouse.toml"}, tmp_path, home) == usual / "gatehouse.toml"


def test_a_file_in_the_current_folder_is_neither_read_nor_written(tmp_path: Path) -> None:
    cwd, home = tmp_path / "cwd", tmp_path / "home"
    cwd.mkdir()
    (cwd / "gatehouse.toml").touch()
    assert find(None, {}, cwd, home) != cwd / "gatehouse.toml"
    assert destination(None, {}, cwd, home) == home / ".gatehouse" / "gatehouse.toml"
    assert find(Path("gatehouse.toml"), {}, cwd, home) == cwd / "gatehouse.toml"


def test_a_file_in_the_current_folder_is_reported_as_ignored_unless_it_is_used(tmp_path: Path) -> None:
    cwd, home = tmp_path / "cwd", tmp_path / "home"
    (home / ".gatehouse").mkdir(parents=True)
    cwd.mkdir()
    assert find_ignored(None, {}, cwd, home) is None
    (cwd / "gatehouse.toml").touch()
    (home / ".gatehouse" / "gatehouse.toml").touch()
    assert find_ignored(None, {}, cwd, home) == cwd / "gatehouse.toml"
    assert find_ignored(None, {}, home / ".gatehouse", home) is None
    assert find_ignored(Path("gatehouse.toml"), {}, cwd, home) is None
    assert find_ignored(None, {"GATEHOUSE_CONFIG": "gatehouse.toml"}, cwd, home) is None


@pytest.mark.parametrize(("explicit", "environ"), [(Path("gone"), {}), (None, {"GATEHOUSE_CONFIG": "gone"})])
def test_a_file_named_explicitly_must_exist(tmp_path: Path, explicit: Path | None, environ: dict[str, str]) -> None:
    (tmp_path / "gatehouse.toml").touch()
    with pytest.raises(ConfigError, match="does not exist"):
        find(explicit, environ, tmp_path, tmp_path)
    assert destination(explicit, environ, tmp_path, tmp_path) == tmp_path / "gone"


def test_a_new_file_is_created_in_the_home_folder(tmp_path: Path) -> None:
    cwd, home = tmp_path / "cwd", tmp_path / "home"
    assert destination(None, {}, cwd, home) == home / ".gatehouse" / "gatehouse.toml"


def test_the_environment_overrides_the_idle_minutes_of_coding_agents_only(tmp_path: Path) -> None:
    text = '[agents.coder]\nbackend = "acp"\ncommand = ["agent"]\nidle_minutes = 5\n[agents.helper]\n'
    path = write_config(tmp_path, text)
    agents = load(path, {"AGENT_SESSION_IDLE_TIMEOUT": "7"}).settings.agents
    assert (agents["coder"].idle_minutes, agents["helper"].idle_minutes) == (7, 30)
    assert load(path, {}).settings.agents["coder"].idle_minutes == 5


CODER = '[agents.coder]\nbackend = "acp"\n'


def test_an_unknown_preset_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    path = write_config(tmp_path, CODER + 'preset = "gemni"')
    problems = problems_of(path)
    assert list(problems) == ["agents.coder.preset"]
    problem = problems["agents.coder.preset"]
    assert problem.message == ("must be 'claude', 'codex', 'copilot', 'gemini', 'opencode' or 'qwen', got 'gemni'")
    assert problem.hint == "did you mean `gemini`?"


def test_an_agent_without_preset_and_command_is_told_what_to_set(tmp_path: Path) -> None:
    problem = problems_of(write_config(tmp_path, CODER))["agents.coder.command"]
    assert problem.message == 'or preset is required by backend "acp"'
    assert 'preset = "gemini"' in problem.hint


def test_a_key_of_the_other_backend_is_reported_with_its_fix(tmp_path: Path) -> None:
    path = write_config(tmp_path, CODER + 'preset = "gemini"\nask = ["edit"]\n[agents.main]\nmode = "plan"')
    problems = problems_of(path)
    assert problems["agents.coder.ask"].hint == "remove it: the program decides what it asks about; see mode"
    assert problems["agents.main.mode"].hint == 'set backend = "acp", or remove mode'


def test_a_program_may_not_read_the_data_directory(tmp_path: Path) -> None:
    sandbox = f'[agents.coder.sandbox]\nhome = "{tmp_path}"\nreadable = ["/usr", "{tmp_path}/data/files"]\n'
    text = f'[gateway]\ndata_dir = "{tmp_path}/data"\n' + CODER + 'preset = "gemini"\n' + sandbox
    problems = problems_of(write_config(tmp_path, text))
    assert set(problems) == {"agents.coder.sandbox.home", "agents.coder.sandbox.readable[1]"}
    assert "overlaps with gateway.data_dir" in problems["agents.coder.sandbox.home"].message


def test_the_path_of_a_program_starts_at_the_folder_of_the_file(tmp_path: Path) -> None:
    def command(given: str) -> str:
        path = write_config(tmp_path, CODER + f'command = ["{given}", "./argument"]')
        program, argument = load(path, {"HOME": "/home/ada"}).settings.agents["coder"].command
        assert argument == "./argument"
        return program

    assert command("bin/agent") == f"{tmp_path}/bin/agent"
    assert command("~/bin/agent") == "/home/ada/bin/agent"
    assert command("/opt/agent") == "/opt/agent"
    assert command("agent") == "agent"


def test_a_coding_agent_without_any_repo_is_warned_about(tmp_path: Path) -> None:
    path = write_config(tmp_path, CODER + 'preset = "gemini"')
    assert load(path, {}).warnings == ("agents.coder has no repository to work in: add one as a table [[repos]]",)
    path = write_config(tmp_path, CODER + 'preset = "gemini"\n[[repos]]\nid = "website"\npath = "website"\n')
    assert "has no repository" not in str(load(path, {}).warnings)
