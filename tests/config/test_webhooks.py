"""The tables of webhooks: what is refused, with which key and hint, and what a reload applies."""

import base64
from pathlib import Path

import pytest

from config import HookAnswer, HookPreset, Settings, load, plan_reload
from config.settings.webhooks import is_listed
from tests.config.harness import CANARY, problems_of, write_config

SECRET = "a-secret-of-good-length"
HOOK = "channels.webhook.hooks.ci"


def hook(*lines: str, secrets: str = f'["{SECRET}"]') -> str:
    return "\n".join([f"[{HOOK}]", f"secrets = {secrets}", *lines])


def settings(**keys: object) -> Settings:
    table = {"secrets": [SECRET], **keys}
    return Settings.model_validate(
        {"gateway": {"data_dir": "/data"}, "channels": {"webhook": {"hooks": {"ci": table}}}}
    )


def test_a_hook_needs_nothing_but_a_secret(tmp_path: Path) -> None:
    made = load(write_config(tmp_path, hook()), {}).settings.channels["webhook"].hooks["ci"]
    assert (made.preset, made.answer, made.prompt) == (HookPreset.STANDARD, HookAnswer.NONE, None)
    assert CANARY not in repr(load(write_config(tmp_path, hook(secrets=f'["{CANARY}"]')), {}).settings)


@pytest.mark.parametrize(
    ("text", "key", "part"),
    [
        (f"[{HOOK}]", "secrets", "is required"),
        (hook(secrets="[]"), "secrets", "at least one secret"),
        (hook(secrets='["short"]'), "secrets", "at least 16 characters"),
        (hook(secrets='["whsec_short"]'), "secrets", "base64"),
        (hook(secrets='["whsec_c2hvcnQ="]'), "secrets", "at least 16 characters"),
        (hook(secrets='["whpk_aaaaaaaaaaaaaaaaaaaaaaaa"]'), "secrets", "public keys"),
        (hook(secrets='["env:NOT_SET"]'), "secrets[0]", "NOT_SET is not set"),
        (hook('preset = "gitub"'), "preset", "standard"),
        (hook('prompt = "{nmae}"', 'fields = { name = "/x" }'), "prompt", "{nmae}"),
        (hook('fields = { name = "x" }'), "fields.name", "JSON Pointer"),
        (hook('fields = { name = "/~2" }'), "fields.name", "JSON Pointer"),
        (hook('conversation = "x"'), "conversation", "JSON Pointer"),
        (hook('answer = "callback"'), "callback_field", "required"),
        (hook('answer = "callback"', 'callback_url = "https://example.org"'), "callback_secret", "required"),
        (hook('callback_url = "https://example.org"'), "callback_url", 'only used with answer = "callback"'),
        (hook('callback_field = "/x"'), "callback_field", 'only used with answer = "callback"'),
        (hook(f'callback_secret = "{SECRET}"'), "callback_secret", 'only used with answer = "callback"'),
        (hook('answer = "chat"'), "chat", "required"),
        (hook('chat = "web:owner"'), "chat", 'only used with answer = "chat"'),
        (hook('answer = "chat"', 'chat = "owner"'), "chat", "a channel and an id"),
        (hook('answer = "chat"', 'chat = "pigeon:1"'), "chat", "does not exist"),
        (hook('answer = "chat"', 'chat = "webhook:ci"'), "chat", "no chats"),
        (hook('answer = "chat"', 'chat = "web:x"', "[channels.web]", "enabled = false"), "chat", "is not enabled"),
        (hook('answer = "chat"', 'chat = "web:x"', 'chat_account = "two"'), "chat_account", "not an account"),
        (
            hook('answer = "chat"', 'chat = "loopback:x"', "[channels.loopback.accounts.two]"),
            "chat_account",
            "use one of: two",
        ),
        (hook('answer = "sync"', "deadline = 3600.0"), "deadline", "at most 40"),
    ],
)
def test_a_mistake_is_named_with_its_key(tmp_path: Path, text: str, key: str, part: str) -> None:
    problem = problems_of(write_config(tmp_path, text))[f"{HOOK}.{key}"]
    assert part in str(problem)
    assert problem.hint


def callback(url: str, hosts: str = "[]") -> str:
    keys = ('answer = "callback"', f'callback_secret = "{SECRET}"', f"callback_hosts = {hosts}")
    return hook(*keys, f'callback_url = "{url}"')


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.org/", "https://127.0.0.1/", "https://localhost/", "https://api.localhost/"),
        *("https://10.1.2.3/", "https://[::1]/", "https://[fd00::1]/", "https://169.254.169.254/latest"),
    ],
)
def test_a_callback_that_is_not_public_must_be_listed(tmp_path: Path, url: str) -> None:
    problem = problems_of(write_config(tmp_path, callback(url)))[f"{HOOK}.callback_url"]
    assert "callback_hosts" in problem.hint
    host = url.split("/")[2]
    load(write_config(tmp_path, callback(url, f'["{host}"]')), {})


def test_both_kinds_of_callback_exclude_each_other(tmp_path: Path) -> None:
    text = callback("https://example.org") + '\ncallback_field = "/url"'
    assert "cannot be combined" in problems_of(write_config(tmp_path, text))[f"{HOOK}.callback_field"].message


@pytest.mark.parametrize("host", ["https://example.org", "example.org/path", "*", "a b", "user@host", ""])
def test_a_listed_host_is_a_name_with_or_without_a_port(tmp_path: Path, host: str) -> None:
    assert f"{HOOK}.callback_hosts[0]" in problems_of(write_config(tmp_path, callback("https://x.org", f'["{host}"]')))


@pytest.mark.parametrize(
    ("url", "hosts", "listed"),
    [
        ("http://ci.lan:8080/x", ("ci.lan:8080",), True),
        ("http://CI.lan:8080/x", ("ci.lan",), True),
        ("http://ci.lan:8081/x", ("ci.lan:8080",), False),
        ("http://ci.lan/x", ("ci.lan:80",), True),
        ("https://ci.lan/x", ("ci.lan:443",), True),
        ("http://ci.lan.evil.org/x", ("ci.lan",), False),
        ("http://evil.org/?ci.lan", ("ci.lan",), False),
        ("http://[::1]:9/x", ("[::1]",), True),
    ],
)
def test_hosts_are_compared_as_a_whole(url: str, hosts: tuple[str, ...], listed: bool) -> None:  # noqa: FBT001 - a claim.
    assert is_listed(url, hosts) is listed


def test_only_one_channel_has_webhooks(tmp_path: Path) -> None:
    text = f'[channels.web.hooks.ci]\nsecrets = ["{SECRET}"]\n[channels.webhook.accounts.two]'
    assert {"channels.web.hooks", "channels.webhook.accounts"} <= problems_of(write_config(tmp_path, text)).keys()


def test_a_key_of_standard_webhooks_is_base64_only_where_that_is_its_form(tmp_path: Path) -> None:
    """The secrets of Stripe begin with the same letters, and are used as they are."""
    key = "whsec_" + base64.b64encode(b"k" * 24).decode()
    load(write_config(tmp_path, hook(secrets=f'["{key}", "{SECRET}"]')), {})
    load(write_config(tmp_path, hook('preset = "stripe"', secrets='["whsec_not-in-base64!!"]')), {})


def test_conditions_take_one_value_or_several(tmp_path: Path) -> None:
    path = write_config(tmp_path, hook('when = { "/a" = "x", "/b" = ["y", 2, true], "/c/d" = 1.5 }'))
    when = load(path, {}).settings.channels["webhook"].hooks["ci"].when
    assert when == {"/a": ("x",), "/b": ("y", 2, True), "/c/d": (1.5,)}


def test_a_reload_applies_changes_of_hooks(tmp_path: Path) -> None:
    plan = plan_reload(settings(), settings(prompt="Hello."), ["webhook"])
    assert (plan.applied, plan.restart_needed) == ((f"{HOOK}.prompt",), ())
    assert plan.settings.channels["webhook"].hooks["ci"].prompt == "Hello."
    text = hook().replace("hooks.ci", "hooks.other")
    other = load(write_config(tmp_path, f'{text}\n[gateway]\ndata_dir = "/data"'), {"HOME": "/"}).settings
    plan = plan_reload(settings(), other, ["webhook"])
    assert set(plan.applied) == {HOOK, "channels.webhook.hooks.other"}
    assert set(plan.settings.channels["webhook"].hooks) == {"other"}


def test_hooks_of_a_removed_channel_are_gone_at_once() -> None:
    """The channel itself stays open until the restart, because the routes of the server are fixed."""
    plan = plan_reload(settings(), Settings.model_validate({"gateway": {"data_dir": "/data"}}), ["webhook"])
    assert plan.restart_needed == ("channels.webhook",)
    assert plan.settings.channels["webhook"].hooks == {}


def test_a_channel_without_hooks_is_warned_about(tmp_path: Path) -> None:
    assert any("has no hooks" in warning for warning in load(write_config(tmp_path, "[channels.webhook]"), {}).warnings)
    assert load(write_config(tmp_path, hook()), {}).warnings == ()
