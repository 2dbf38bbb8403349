import copy
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ChannelSettings, ConfigError, ProviderKind, ProviderSettings, Secret, load

CANARY = "canary-5f1c9e7a-never-to-be-seen"


def written(folder: Path, text: str) -> Path:
    path = folder / "gatehouse.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def telegram_token(path: Path, environ: dict[str, str]) -> str:
    token = load(path, environ).settings.channels["telegram"].token
    assert token is not None
    return token.reveal()


def test_prints_as_stars_in_every_way() -> None:
    secret = Secret(CANARY)
    assert {repr(secret), str(secret), f"{secret}", "%s" % secret} == {"***"}  # noqa: UP031  # One of the ways.
    assert f"{secret:>5}" == "  ***"
    assert json.dumps({"token": secret}, default=str) == '{"token": "***"}'


def test_leaves_the_process_as_stars() -> None:
    thawed: object = pickle.loads(pickle.dumps(Secret(CANARY)))  # noqa: S301  # Our own bytes.
    assert thawed == Secret("***")
    assert CANARY.encode() not in pickle.dumps(Secret(CANARY))


def test_copies_keep_the_value() -> None:
    assert copy.deepcopy(Secret(CANARY)).reveal() == copy.copy(Secret(CANARY)).reveal() == CANARY


@pytest.mark.parametrize("mode", ["python", "json"])
def test_dumped_settings_hold_stars(mode: str) -> None:
    provider = ProviderSettings(kind=ProviderKind.OPENAI, api_key=Secret(CANARY))
    channel = ChannelSettings(token=Secret(CANARY), options={"deep": [{"key": Secret(CANARY)}]})
    for settings in (provider, channel):
        assert CANARY not in f"{settings!r}{settings.model_dump(mode=mode)}{settings.model_dump_json()}"
        assert "***" in str(settings.model_dump(mode=mode))


@given(st.text(), st.text())
def test_secrets_are_equal_when_their_values_are(one: str, other: str) -> None:
    assert (Secret(one) == Secret(other)) is (one == other)
    assert Secret(one) == Secret(one)
    assert hash(Secret(one)) == hash(Secret(one))
    assert Secret(one) != one


def test_a_plain_secret_is_taken_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, f'[channels.telegram]\ntoken = "123:{CANARY}"')
    assert telegram_token(path, {}) == f"123:{CANARY}"


def test_env_takes_the_variable(tmp_path: Path) -> None:
    path = written(tmp_path, '[channels.telegram]\ntoken = "env:BOT"')
    assert telegram_token(path, {"BOT": CANARY}) == CANARY


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_file_is_read_beside_the_config_file_without_its_last_newline(tmp_path: Path, ending: str) -> None:
    (tmp_path / "bot.token").write_bytes(f"{CANARY}{ending}".encode())
    path = written(tmp_path, '[channels.telegram]\ntoken = "file:bot.token"')
    assert telegram_token(path, {}) == CANARY


def test_file_knows_the_home_folder(tmp_path: Path) -> None:
    (tmp_path / "bot.token").write_text(CANARY, encoding="utf-8")
    (tmp_path / "etc").mkdir()
    path = written(tmp_path / "etc", '[channels.telegram]\ntoken = "file:~/bot.token"')
    assert telegram_token(path, {"HOME": str(tmp_path)}) == CANARY


def test_credential_is_read_where_systemd_put_it(tmp_path: Path) -> None:
    (tmp_path / "bot").write_text(f"{CANARY}\n", encoding="utf-8")
    path = written(tmp_path, '[channels.telegram]\ntoken = "credential:bot"')
    assert telegram_token(path, {"CREDENTIALS_DIRECTORY": str(tmp_path)}) == CANARY


def test_references_in_options_become_secrets(tmp_path: Path) -> None:
    path = written(tmp_path, '[channels.matrix.options]\nkeys = [{ name = "a", key = "env:KEY" }]\nserver = "x:1"')
    options = load(path, {"KEY": CANARY}).settings.channels["matrix"].options
    assert options == {"keys": [{"name": "a", "key": Secret(CANARY)}], "server": "x:1"}


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("env:NOT_THERE", "NOT_THERE is not set"),
        ("env:EMPTY", "EMPTY is empty"),
        ("env:", "names nothing"),
        ("file:not-there", "No such file"),
        ("file:.", "Is a directory"),
        ("file:empty", "is empty"),
        ("file:binary", "is not UTF-8"),
        ("file:~nobody-of-that-name/x", "no such home folder"),
        ("credential:not-there", "No such file"),
        ("credential:../escape", "no slash"),
        ("credential:..", "no slash"),
    ],
)
def test_what_cannot_be_resolved_is_reported_with_key_and_reference(tmp_path: Path, reference: str, said: str) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(CANARY.encode() + b"\xff")
    path = written(tmp_path, f'[channels.telegram]\ntoken = "{reference}"')
    with pytest.raises(ConfigError, match=said) as caught:
        load(path, {"EMPTY": "", "OTHER": CANARY, "CREDENTIALS_DIRECTORY": str(tmp_path)})
    (problem,) = caught.value.problems
    assert problem.key == "channels.telegram.token"
    assert reference.partition(":")[2] in problem.message
    assert problem.hint
    assert CANARY not in str(caught.value)


def test_a_credential_without_systemd_names_the_way_out(tmp_path: Path) -> None:
    path = written(tmp_path, '[channels.telegram]\ntoken = "credential:bot"')
    with pytest.raises(ConfigError, match="LoadCredential=bot"):
        load(path, {})


@pytest.mark.parametrize(
    "text",
    [
        '[http]\ntoken = "{short}"',
        '[http]\ntoken = "{canary} with spaces"',
        '[http]\nport = "{canary}"',
        '[http]\ntokne = "{canary}"',
        '[http]\ntoken = ["{canary}"]',
        'http = "{canary}"',
        'channels = "{canary}"',
        '[channels]\ntelegram = "{canary}"',
        '[channels.telegram]\ntoken = {{ value = "{canary}" }}',
        '[channels.telegram]\ndm_policy = "{canary}"',
        '[channels.telegram]\nenabled = "{canary}"',
        '[channels.telegram]\nallow = "{canary}"',
        '[channels.telegram]\napi_base = "https://bot:{canary}@example.org"',
        '[channels.telegram]\napi_base = "https://[{canary}"',
        '[channels.telegram]\ntoken = "{canary}"\ndm_policy = 1',
        '[channels.telegram]\ntoken = "{canary}',
        "[channels.telegram]\ntoken = {canary}",
        '[providers.x]\napi_key = "{canary}"',
        '[gateway]\nowners = ["{canary}"]',
        '[mcp.x]\nenv = "{canary}"',
        '[mcp.x]\nenv = {{ A = ["{canary}"] }}\nheaders = {{ A = "{canary}" }}',
    ],
)
def test_no_error_repeats_a_secret(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text.format(canary=CANARY, short="canary-5f1c9e7"))
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert "canary-5f1c9e7" not in f"{caught.value}{caught.value!r}{caught.value.problems}"
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_settings_built_in_code_do_not_follow_references() -> None:
    with pytest.raises(ValueError, match="only be resolved while a config file is read"):
        ProviderSettings.model_validate({"kind": "openai", "api_key": "env:HOME"})


def test_a_secret_in_a_file_that_others_can_read_is_warned_about(tmp_path: Path) -> None:
    path = written(tmp_path, f'[http]\ntoken = "{CANARY}"\n[channels.telegram]\ntoken = "{CANARY}"')
    assert load(path, {}).warnings == ()
    path.chmod(0o644)
    (warning,) = load(path, {}).warnings
    assert "chmod 600" in warning


def test_a_file_that_others_can_change_is_warned_about(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    path.chmod(0o622)
    (warning,) = load(path, {}).warnings
    assert "other users can change the file" in warning


def test_a_resolved_token_that_looks_like_a_reference_is_still_measured(tmp_path: Path) -> None:
    path = written(tmp_path, '[http]\ntoken = "env:TOKEN"')
    with pytest.raises(ConfigError, match="at least 16 characters"):
        load(path, {"TOKEN": "file:x"})
