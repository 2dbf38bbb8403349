"""Secrets: they print as stars, and references are resolved."""

import copy
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ChannelSettings, ConfigError, ProviderKind, ProviderSettings, Secret, load
from tests.config.harness import CANARY, write_config


def telegram_token(path: Path, environ: dict[str, str]) -> str:
    token = load(path, environ).settings.channels["telegram"].token
    assert token is not None
    return token.reveal()


def test_a_secret_prints_as_stars() -> None:
    secret = Secret(CANARY)
    assert {repr(secret), str(secret), f"{secret}", "%s" % secret} == {"***"}  # noqa: UP031  # One of the ways.
    assert f"{secret:>5}" == "  ***"
    assert json.dumps({"token": secret}, default=str) == '{"token": "***"}'


def test_a_pickled_secret_contains_stars_only() -> None:
    thawed: object = pickle.loads(pickle.dumps(Secret(CANARY)))  # noqa: S301  # Our own bytes.
    assert thawed == Secret("***")
    assert CANARY.encode() not in pickle.dumps(Secret(CANARY))


def test_a_copied_secret_keeps_its_value() -> None:
    assert copy.deepcopy(Secret(CANARY)).reveal() == copy.copy(Secret(CANARY)).reveal() == CANARY


@pytest.mark.parametrize("mode", ["python", "json"])
def test_dumped_settings_contain_stars(mode: str) -> None:
    provider = ProviderSettings(kind=ProviderKind.OPENAI, api_key=Secret(CANARY))
    channel = ChannelSettings(token=Secret(CANARY), options={"deep": [{"key": Secret(CANARY)}]})
    for settings in (provider, channel):
        assert CANARY not in f"{settings!r}{settings.model_dump(mode=mode)}{settings.model_dump_json()}"
        assert "***" in str(settings.model_dump(mode=mode))


@given(st.text(), st.text())
def test_secrets_are_equal_if_their_values_are(one: str, other: str) -> None:
    assert (Secret(one) == Secret(other)) is (one == other)
    assert Secret(one) == Secret(one)
    assert hash(Secret(one)) == hash(Secret(one))
    assert Secret(one) != one


def test_a_plain_secret_is_used_as_it_is(tmp_path: Path) -> None:
    path = write_config(tmp_path, f'[channels.telegram]\ntoken = "123:{CANARY}"')
    assert telegram_token(path, {}) == f"123:{CANARY}"


def test_env_reads_the_variable(tmp_path: Path) -> None:
    path = write_config(tmp_path, '[channels.telegram]\ntoken = "env:BOT"')
    assert telegram_token(path, {"BOT": CANARY}) == CANARY


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_file_is_relative_to_the_config_file_and_loses_its_last_newline(tmp_path: Path, ending: str) -> None:
    (tmp_path / "bot.token").write_bytes(f"{CANARY}{ending}".encode())
    path = write_config(tmp_path, '[channels.telegram]\ntoken = "file:bot.token"')
    assert telegram_token(path, {}) == CANARY


def test_file_expands_the_home_folder(tmp_path: Path) -> None:
    (tmp_path / "bot.token").write_text(CANARY, encoding="utf-8")
    (tmp_path / "etc").mkdir()
    path = write_config(tmp_path / "etc", '[channels.telegram]\ntoken = "file:~/bot.token"')
    assert telegram_token(path, {"HOME": str(tmp_path)}) == CANARY


def test_credential_is_read_where_systemd_put_it(tmp_path: Path) -> None:
    (tmp_path / "bot").write_text(f"{CANARY}\n", encoding="utf-8")
    path = write_config(tmp_path, '[channels.telegram]\ntoken = "credential:bot"')
    assert telegram_token(path, {"CREDENTIALS_DIRECTORY": str(tmp_path)}) == CANARY


def test_references_in_options_become_secrets(tmp_path: Path) -> None:
    path = write_config(tmp_path, '[channels.matrix.options]\nkeys = [{ name = "a", key = "env:KEY" }]\nserver = "x:1"')
    options = load(path, {"KEY": CANARY}).settings.channels["matrix"].options
    assert options == {"keys": [{"name": "a", "key": Secret(CANARY)}], "server": "x:1"}


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("env:NOT_THERE", "NOT_THERE is not set"),
        ("env:EMPTY", "EMPTY is empty"),
        ("env:", "has no name after it"),
        ("file:not-there", "No such file"),
        ("file:.", "Is a directory"),
        ("file:empty", "is empty"),
        ("file:binary", "is not UTF-8"),
        ("file:~no-user-of-this-name/x", "home folder does not exist"),
        ("credential:not-there", "No such file"),
        ("credential:../escape", "cannot contain a slash"),
        ("credential:..", "cannot contain a slash"),
    ],
)
def test_an_unresolvable_reference_is_reported_with_its_key(tmp_path: Path, reference: str, expected: str) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(CANARY.encode() + b"\xff")
    path = write_config(tmp_path, f'[channels.telegram]\ntoken = "{reference}"')
    with pytest.raises(ConfigError, match=expected) as caught:
        load(path, {"EMPTY": "", "OTHER": CANARY, "CREDENTIALS_DIRECTORY": str(tmp_path)})
    (problem,) = caught.value.problems
    assert problem.key == "channels.telegram.token"
    assert reference.partition(":")[2] in problem.message
    assert problem.hint
    assert CANARY not in str(caught.value)


def test_the_hint_for_a_credential_without_systemd_names_the_unit_option(tmp_path: Path) -> None:
    path = write_config(tmp_path, '[channels.telegram]\ntoken = "credential:bot"')
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
def test_no_error_quotes_a_secret(tmp_path: Path, text: str) -> None:
    path = write_config(tmp_path, text.format(canary=CANARY, short="canary-5f1c9e7"))
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert "canary-5f1c9e7" not in f"{caught.value}{caught.value!r}{caught.value.problems}"
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_settings_built_in_code_do_not_resolve_references() -> None:
    with pytest.raises(ValueError, match="only be resolved while a config file is read"):
        ProviderSettings.model_validate({"kind": "openai", "api_key": "env:HOME"})


def test_a_secret_in_a_file_that_others_can_read_causes_a_warning(tmp_path: Path) -> None:
    path = write_config(tmp_path, f'[http]\ntoken = "{CANARY}"\n[channels.telegram]\ntoken = "{CANARY}"')
    assert load(path, {}).warnings == ()
    path.chmod(0o644)
    (warning,) = load(path, {}).warnings
    assert "chmod 600" in warning


def test_a_file_that_others_can_change_causes_a_warning(tmp_path: Path) -> None:
    path = write_config(tmp_path, "")
    path.chmod(0o622)
    (warning,) = load(path, {}).warnings
    assert "other users can change the file" in warning


def test_a_resolved_token_that_looks_like_a_reference_is_still_checked(tmp_path: Path) -> None:
    path = write_config(tmp_path, '[http]\ntoken = "env:TOKEN"')
    with pytest.raises(ConfigError, match="at least 16 characters"):
        load(path, {"TOKEN": "file:x"})
