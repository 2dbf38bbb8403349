"""Writes what the settings of another gateway mean here, as a configuration to look at. Nothing applies it."""

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import tomlkit
from tomlkit.items import Table

from config.errors import InvalidValue
from config.types import check_url
from gateway.contract import Address
from gateway.importing.values import ForeignSettings, ProposedChannel, ProposedModel

_HEADING = """Proposed by `gatehouse import` from the settings of {maker}. Nothing has applied it.
Compare it with your configuration, and check the result with `gatehouse config check`."""

_NUMBER = re.compile(r"-?[0-9]{1,19}")


def proposed_config(maker: str, settings: ForeignSettings, groups: Collection[Address], *, with_secrets: bool) -> str:
    """Return a configuration in TOML. Without secrets, it has references to variables in their place.

    `groups` are those of the imported conversations: they may go on.
    """
    document = tomlkit.document()
    for line in _HEADING.format(maker=maker).split("\n"):
        document.add(tomlkit.comment(line))
    for note in settings.notes:
        document.add(tomlkit.comment(" ".join(note.split())))
    if settings.timezone:
        document.add("gateway", _table({"timezone": settings.timezone}))
    session = tomlkit.table()
    if settings.dm_scope:
        session.add("dm_scope", settings.dm_scope)
    if settings.identity_links:
        links = tomlkit.table()
        for name, ids in settings.identity_links.items():
            links.add(name, list(ids))
        session.add("identity_links", links)
    if session:
        document.add("session", session)
    if settings.model is not None:
        _add_model(document, settings.model, settings.prompt_file, with_secrets=with_secrets)
    if settings.channels:
        channels = tomlkit.table(is_super_table=True)
        accounts: dict[tuple[str, str], ProposedChannel] = {}
        for each in settings.channels:  # Settings of several versions may have an account twice.
            accounts.setdefault((each.name, each.account), each)
        for channel in accounts.values():
            known = {*channel.group_allow, *(chat.peer for chat in groups if chat.channel == channel.name)}
            _add_channel(channels, replace(channel, group_allow=tuple(sorted(known))), with_secrets=with_secrets)
        document.add("channels", channels)
    return tomlkit.dumps(document)


def has_content(settings: ForeignSettings) -> bool:
    return bool(settings.channels or settings.model or settings.dm_scope or settings.identity_links)


def _add_model(
    document: tomlkit.TOMLDocument, model: ProposedModel, prompt_file: Path | None, *, with_secrets: bool
) -> None:
    main = _table({"provider": model.provider, "model": model.model})
    if prompt_file is not None:
        persona = " ".join(str(prompt_file).split())
        main.add(tomlkit.comment(f"Its persona is in {persona}. Copy what you want to keep, and name the copy here."))
        main.add(tomlkit.comment('prompt_file = "prompt.md"'))
    agents = tomlkit.table(is_super_table=True)
    agents.add("main", main)
    document.add("agents", agents)
    provider = _table({"kind": model.kind})
    if model.base_url:
        try:
            provider.add("base_url", check_url(model.base_url))
        except InvalidValue as error:  # It may have a password, so it is not quoted.
            provider.add(tomlkit.comment(f"The other gateway's base_url is left out: it {error}."))
    if model.api_key:
        name = model.provider.upper().replace("-", "_")
        provider.add("api_key", _secret(model.api_key, f"{name}_API_KEY", with_secrets=with_secrets))
    providers = tomlkit.table(is_super_table=True)
    providers.add(model.provider, provider)
    document.add("providers", providers)


def _add_channel(channels: Table, channel: ProposedChannel, *, with_secrets: bool) -> None:
    is_default = channel.account == "default"
    if channel.name not in channels:
        channels.add(channel.name, tomlkit.table(is_super_table=not is_default))
    table = channels[channel.name]
    if not is_default:
        if "accounts" not in table:
            table.add("accounts", tomlkit.table(is_super_table=True))
        table["accounts"].add(channel.account, tomlkit.table())
        table = table["accounts"][channel.account]
    suffix = "" if is_default else f"_{channel.account.upper()}"
    values: dict[str, object] = {
        "token": _secret(channel.token, f"{channel.name.upper()}{suffix}_TOKEN", with_secrets=with_secrets),
        "dm_policy": channel.dm_policy or "pairing",
    }
    if channel.allow:
        values["allow"] = [_number_or_text(each) for each in channel.allow]
    if channel.group_policy:
        values["group_policy"] = channel.group_policy
    if channel.group_allow:
        values["group_allow"] = [_number_or_text(each) for each in channel.group_allow]
    if channel.require_mention is False:
        values["require_mention"] = False
    for name, value in values.items():
        table.add(name, value)


def _number_or_text(value: str) -> int | str:
    return int(value) if _NUMBER.fullmatch(value) else value


def _secret(value: str, name: str, *, with_secrets: bool) -> str:
    """Return a secret if it is wanted, and otherwise a reference to a variable. The other gateway may have one too."""
    is_reference = value.startswith(("env:", "file:"))
    return value if value and (with_secrets or is_reference) else f"env:{name}"


def _table(values: dict[str, object]) -> Table:
    table = tomlkit.table()
    for name, value in values.items():
        table.add(name, value)
    return table
