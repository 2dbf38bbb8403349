"""Secrets: a value that is never printed, and the references that stand for one (`env:`, `file:`, `credential:`)."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, SchemaSerializer, core_schema

from config.errors import InvalidValue

EXPOSED_SECRET = "the file contains a secret and other users can read it; run chmod 600 on it, or use references"  # noqa: S105  # A warning.

_STARS = "***"
_REFERENCE_KINDS = ("env", "file", "credential")
_AS_STARS = core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema())


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadContext:
    """Context of a validation: where references and relative paths point to, and where warnings go.

    With `resolves` false, references to secrets are not followed: a command that edits the file runs in a shell that
    may lack the daemon's environment. `is_exposed` means that other users can read the file. `is_running` means that
    the running gateway reads the file again: its environment stays as it was at its start.
    """

    environ: Mapping[str, str]
    folder: Path
    resolves: bool = True
    is_exposed: bool = False
    is_running: bool = False
    warnings: list[str] = field(default_factory=list)

    def warn(self, warning: str) -> None:
        if warning not in self.warnings:
            self.warnings.append(warning)

    def path(self, text: str | Path) -> Path:
        """Return `text` as an absolute path. Relative paths start at the config file's folder."""
        path = Path(text)
        # $HOME comes from `environ`, which may not be the environment of this process.
        if path.parts[:1] == ("~",) and self.environ.get("HOME"):
            path = Path(self.environ["HOME"], *path.parts[1:])
        return self.folder / expand_home(path)


def expand_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # Raised by pathlib if the user does not exist.
        raise InvalidValue(f"{path}: this home folder does not exist", "write the full path") from None


def context_of(info: ValidationInfo) -> LoadContext | None:
    """Return the context of this validation. Settings built in code have none."""
    return info.context if isinstance(info.context, LoadContext) else None


class Secret:
    """Prints, pickles and dumps as `***`. Only `reveal()` returns the value."""

    __slots__ = ("__value",)

    # Pydantic uses this serializer if a field of type `Any` contains a secret.
    __pydantic_serializer__ = SchemaSerializer(core_schema.any_schema(serialization=_AS_STARS))

    def __init__(self, value: str) -> None:
        self.__value = value

    def reveal(self) -> str:
        return self.__value

    def __repr__(self) -> str:
        return _STARS

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(_STARS, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        # In constant time: the delay of an answer must not tell how much of a guessed token is right.
        mine = self.__value.encode("utf-8", "surrogatepass")
        return hmac.compare_digest(mine, other.__value.encode("utf-8", "surrogatepass"))

    def __hash__(self) -> int:
        return hash((Secret, self.__value))

    # Copies keep the value, since they stay in this process. Pickles may leave it.
    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, memo: object) -> "Secret":
        return self

    def __reduce__(self) -> tuple[type["Secret"], tuple[str]]:
        return Secret, (_STARS,)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(_validate, serialization=_AS_STARS)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "examples": ["env:NAME", "file:PATH", "credential:NAME"]}


def _validate(value: object, info: ValidationInfo) -> Secret:
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise InvalidValue("must be text in quotes")
    if not value:
        raise InvalidValue("must not be empty", "remove the key, or set a value or a reference such as `env:NAME`")
    context = context_of(info)
    if is_reference(value):
        return resolve(value, context)
    if context and context.is_exposed:
        context.warn(EXPOSED_SECRET)
    return Secret(value)


def is_reference(text: str) -> bool:
    return text.partition(":")[0] in _REFERENCE_KINDS and ":" in text


def resolve(reference: str, context: LoadContext | None) -> Secret:
    """Return the secret that `reference` stands for.

    Raises `InvalidValue` with the reference and a hint. The error never contains a value.
    """
    kind, _, name = reference.partition(":")
    if context is None:
        raise InvalidValue(f"`{reference}` can only be resolved while a config file is read")
    if not name or "\0" in name:
        raise InvalidValue(f"`{kind}:` has no name after it", f"write `{kind}:` followed by a name")
    if not context.resolves:
        return Secret(reference)
    value, fault = "", ""
    if kind == "env":
        hint = f"export {name} where Gatehouse is started"
        value = context.environ.get(name, "")
        if not value:
            fault = f"{name} is empty" if name in context.environ else f"{name} is not set"
            if context.is_running:
                fault += " in the environment of the running gateway"
                hint = f"restart the gateway with {name} set, since a reload cannot pass it on; or use `file:`"
    elif kind == "file":
        hint = "create this file so that only Gatehouse can read it (mode 0600)"
        value, fault = _read(context.path(name))
    else:
        hint = f"add `LoadCredential={name}:/path/to/file` to the systemd unit, or use `file:` or `env:`"
        # systemd.exec(5): the folder with the credentials of this service.
        folder = context.environ.get("CREDENTIALS_DIRECTORY")
        if not folder:
            fault = "systemd passed no credentials to this process"
        elif "/" in name or name in {".", ".."}:
            fault = "the name of a credential cannot contain a slash"
        else:
            value, fault = _read(Path(folder, name))
    if fault:
        raise InvalidValue(f"`{reference}` cannot be resolved: {fault}", hint)
    return Secret(value)


def _read(path: Path) -> tuple[str, str]:
    """Return the content of `path` without its last newline, and why it is unusable, or an empty string."""
    try:
        # Not `strip`: a password may start or end with a space.
        value = path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        return "", f"{path}: {error.strerror or 'it cannot be read'}"
    except ValueError:  # The decoder's message quotes the content.
        return "", f"{path} is not UTF-8 text"
    return value, "" if value else f"{path} is empty"
