"""Webhooks: who may call them, what the agent is asked, and where its answer goes."""

import base64
import binascii
import ipaddress
import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator

from config.errors import InvalidValue, did_you_mean
from config.secrets import Secret, context_of, is_reference
from config.types import HookAnswer, HookChatKind, HookPreset, Id, PlatformId, Seconds, Slug, Table, Text, Url

PLACEHOLDER = re.compile(r"\{\{([\w-]+)\}\}|\{([\w-]+)\}")
"""`{name}` in a prompt stands for a value, and `{{name}}` for the text `{name}`."""
SIGNING_KEY = "whsec_"
"""Begins a secret of Standard Webhooks. The rest is the key in base64."""
MAX_DEADLINE = 40.0
"""Seconds. The HTTP server closes a connection some time later."""
_MIN_SECRET_LENGTH = 16
_GENERATE = 'generate one with: python3 -c "import secrets; print(secrets.token_urlsafe(32))"'


def _check_pointer(pointer: str) -> str:
    if (pointer and not pointer.startswith("/")) or re.search(r"~(?![01])", pointer):
        raise InvalidValue("must be a JSON Pointer", 'write it like "/repository/full_name"; "" is the whole payload')
    return pointer


Pointer = Annotated[str, AfterValidator(_check_pointer)]
"""A JSON Pointer (RFC 6901)."""

_Scalar = str | int | float | bool
Accepted = Annotated[
    tuple[_Scalar, ...],
    BeforeValidator(lambda value: value if isinstance(value, list | tuple) else (value,)),
    WithJsonSchema({"anyOf": [{"type": ["string", "number", "boolean"]}, {"type": "array"}]}),
]
"""The values that a condition accepts: one, or a list of them."""


def _check_host(value: str) -> str:
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?", value):
        raise InvalidValue("must be a host name or an address, with or without a port", 'write it like "ci.lan:8080"')
    return value.lower()


Host = Annotated[str, AfterValidator(_check_host)]


def is_listed(url: str, hosts: tuple[str, ...]) -> bool:
    """Return whether `hosts` has the host of a URL, with its port or without one."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    name = f"[{host}]" if ":" in host else host
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return name in hosts or f"{name}:{port}" in hosts


class HookSettings(Table):
    """One webhook: `POST /hooks/<name>`."""

    preset: HookPreset = Field(
        default=HookPreset.STANDARD,
        description='How calls are signed: as Standard Webhooks has it ("standard"), or as GitHub, GitLab, Stripe or '
        "Slack do it.",
    )
    secrets: tuple[Secret, ...] = Field(
        description="The secrets that sign the calls; preferably references like env:NAME. More than one while a "
        "secret is being replaced."
    )
    role: Slug = Field(default="member", description="The role of the calls: a table in [roles].")
    fields: dict[Slug, Pointer] = Field(
        default_factory=dict, description="The values that the prompt uses: JSON Pointers into the payload, by name."
    )
    prompt: Text | None = Field(
        default=None,
        description="What the agent is asked. {name} stands for a value of `fields`. Default: the whole payload.",
    )
    when: dict[Pointer, Accepted] = Field(
        default_factory=dict,
        description="Which calls are answered: those whose payload has one of the given values at each JSON Pointer. "
        "Default: all.",
    )
    conversation: Pointer | None = Field(
        default=None,
        description="A JSON Pointer. Each value there gets its own conversation. Default: one for the hook.",
    )
    answer: HookAnswer = Field(
        default=HookAnswer.NONE,
        description='Where the answer goes: only into the transcript ("none"), into the response ("sync"), to a URL '
        '("callback"), or into a chat of another channel ("chat").',
    )
    deadline: Seconds = Field(
        default=25.0,
        ge=1,
        le=MAX_DEADLINE,
        description='How many seconds a response waits for the answer, for "sync".',
    )
    callback_hosts: tuple[Host, ...] = Field(
        default=(),
        description='Hosts that callbacks may go to although they are not public or have no HTTPS, like "ci.lan:8080".',
    )
    callback_url: Url | None = Field(
        default=None, description='The URL that gets the answer, for "callback". It must be public or listed.'
    )
    callback_field: Pointer | None = Field(
        default=None,
        validate_default=True,
        description='A JSON Pointer to the URL that gets the answer, for "callback", instead of callback_url.',
    )
    callback_secret: Secret | None = Field(
        default=None,
        validate_default=True,
        description='The secret that signs the answer, as Standard Webhooks has it, for "callback".',
    )
    chat: PlatformId | None = Field(
        default=None,
        validate_default=True,
        description='The chat that gets the answer, for "chat": a channel and the id of the chat or person on it, like '
        '"telegram:123456".',
    )
    chat_kind: HookChatKind = Field(
        default=HookChatKind.DIRECT,
        description='What the chat is: a "direct" chat, a "group", or a "channel" of a server.',
    )
    chat_thread: Id | None = Field(default=None, description="The thread or topic of the chat. Default: none.")
    chat_account: Slug = Field(default="default", description="The bot account that writes into the chat.")

    @field_validator("secrets")
    @classmethod
    def _check_secrets(cls, secrets: tuple[Secret, ...], info: ValidationInfo) -> tuple[Secret, ...]:
        if not secrets:
            raise InvalidValue("must have at least one secret, or anyone could call the hook", _GENERATE)
        preset = info.data.get("preset", HookPreset.STANDARD)
        for secret in secrets:
            _check_secret(secret, info, is_key=preset in {HookPreset.STANDARD, HookPreset.GITLAB})
        return secrets

    @field_validator("callback_secret")
    @classmethod
    def _check_callback_secret(cls, secret: Secret | None, info: ValidationInfo) -> Secret | None:
        _check_fits_answer(secret, info, HookAnswer.CALLBACK, 'set it, ideally to a reference like "env:NAME"')
        if secret is not None:
            _check_secret(secret, info, is_key=True)
        return secret

    @field_validator("prompt")
    @classmethod
    def _check_placeholders(cls, prompt: str | None, info: ValidationInfo) -> str | None:
        fields = info.data.get("fields")
        for found in PLACEHOLDER.finditer(prompt or ""):
            name = found[2]
            if name is not None and fields is not None and name not in fields:
                hint = (
                    did_you_mean(name, fields) or f"add it to fields, or write {{{{{name}}}}} for the text {{{name}}}"
                )
                raise InvalidValue(f"has the placeholder {{{name}}}, which is not in fields", hint)
        return prompt

    @field_validator("callback_url")
    @classmethod
    def _check_callback_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is None:
            return None
        _check_fits_answer(url, info, HookAnswer.CALLBACK)
        if not is_listed(url, info.data.get("callback_hosts", ())):
            host = urlsplit(url).hostname or ""
            hint = f'add "{host}" to callback_hosts if you trust it'
            if _is_private(host):
                raise InvalidValue("leads to this machine or its network", hint)
            if not url.lower().startswith("https://"):
                raise InvalidValue("must start with https://", hint)
        return url

    @field_validator("callback_field")
    @classmethod
    def _check_one_callback(cls, pointer: str | None, info: ValidationInfo) -> str | None:
        url = info.data.get("callback_url", "")  # Absent if it is invalid, which is reported already.
        if pointer is not None:
            _check_fits_answer(pointer, info, HookAnswer.CALLBACK)
            if url:
                raise InvalidValue("cannot be combined with callback_url", "keep one of the two")
        elif info.data.get("answer") is HookAnswer.CALLBACK and url is None:
            raise InvalidValue('or callback_url is required by answer = "callback"', "set exactly one of the two")
        return pointer

    @field_validator("chat")
    @classmethod
    def _check_chat(cls, chat: str | None, info: ValidationInfo) -> str | None:
        _check_fits_answer(chat, info, HookAnswer.CHAT, 'write it like "telegram:123456"')
        return chat


def _check_fits_answer(value: Any, info: ValidationInfo, answer: HookAnswer, hint: str = "") -> None:  # noqa: ANN401 - any key.
    """Raise `InvalidValue` for a key that another kind of answer needs, and for one that this kind lacks."""
    chosen = info.data.get("answer", answer)
    if value is not None and chosen is not answer:
        raise InvalidValue(f'is only used with answer = "{answer}"', f'set answer = "{answer}", or remove this key')
    if value is None and hint and info.data.get("answer") is answer:
        raise InvalidValue(f'is required by answer = "{answer}"', hint)


def _check_secret(secret: Secret, info: ValidationInfo, *, is_key: bool) -> None:
    """Raise `InvalidValue` for a secret that can be guessed, or that is no key although it looks like one."""
    value, context = secret.reveal(), context_of(info)
    if context and not context.resolves and is_reference(value):
        return  # It was not resolved, so there is nothing to check.
    if is_key and value.startswith(("whpk_", "whsk_")):
        raise InvalidValue("is a key for signatures with public keys, which are not supported", _GENERATE)
    if is_key and value.startswith(SIGNING_KEY):
        try:
            size = len(base64.b64decode(value.removeprefix(SIGNING_KEY), validate=True))
        except (binascii.Error, ValueError):
            raise InvalidValue(f"must be base64 after `{SIGNING_KEY}`", "copy it again, all of it") from None
    else:
        size = len(value)
    # A wrong signature costs an attacker nothing, so the secret must not be one that can be guessed.
    if size < _MIN_SECRET_LENGTH:
        raise InvalidValue(f"must have at least {_MIN_SECRET_LENGTH} characters", _GENERATE)


def _is_private(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return host.rstrip(".").lower().rpartition(".")[2] == "localhost"
