"""Secrets: a value that is never printed, and the references (`env:`, `file:`, `credential:`) that stand for one."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, SchemaSerializer, core_schema

from config.errors import Mistake

_STARS = "***"
_KINDS = ("env", "file", "credential")
_AS_STARS = core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema())


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Travels through validation as its context.

    With `resolves` false, references to secrets are taken on trust: a command that edits the file runs
    in a shell that may not have the daemon's environment. `warnings` collects what is odd but no mistake.
    `is_exposed` says that other users can read the file.
    """

    environ: Mapping[str, str]
    folder: Path
    resolves: bool = True
    is_exposed: bool = False
    warnings: list[str] = field(default_factory=list)

    def warn(self, warning: str) -> None:
        if warning not in self.warnings:
            self.warnings.append(warning)

    def path(self, text: str | Path) -> Path:
        """Return `text` as an absolute path: `~` is the home folder, anything relative lies beside the file."""
        path = Path(text)
        if path.parts[:1] == ("~",) and self.environ.get("HOME"):
            path = Path(self.environ["HOME"], *path.parts[1:])
        return self.folder / expand(path)


def expand(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # How pathlib says it.
        raise Mistake(f"{path}: there is no such home folder", "write the path in full") from None


def source_of(info: ValidationInfo) -> Source | None:
    """Return the context of this validation; settings built in code have none."""
    return info.context if isinstance(info.context, Source) else None


class Secret:
    """Prints, pickles and dumps as `***`; only `reveal()` gives the value."""

    __slots__ = ("__value",)

    # Pydantic looks here when a field of type `Any` holds a secret.
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
        """Compare in constant time, so that an answer's delay tells nothing."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_as_bytes(self.__value), _as_bytes(other.__value))

    def __hash__(self) -> int:
        return hash((Secret, self.__value))

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, memo: object) -> "Secret":
        """Keep the value: unlike pickling, copying does not leave the process."""
        return self

    def __reduce__(self) -> tuple[type["Secret"], tuple[str]]:
        return Secret, (_STARS,)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(_validate, serialization=_AS_STARS)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "examples": ["env:NAME", "file:PATH", "credential:NAME"]}


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _validate(value: object, info: ValidationInfo) -> Secret:
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise Mistake("must be text in quotes")
    if not value:
        raise Mistake("must not be empty", "leave the key out, or write the value or a reference such as `env:NAME`")
    source = source_of(info)
    if is_reference(value):
        return resolve(value, source)
    if source and source.is_exposed:
        source.warn("the file holds a secret and other users can read it; run chmod 600 on it, or use references")
    return Secret(value)


def is_reference(text: str) -> bool:
    return text.partition(":")[0] in _KINDS and ":" in text


def resolve(reference: str, source: Source | None) -> Secret:
    """Return what `reference` stands for; a `Mistake` names the reference and the way out, never a value."""
    kind, _, name = reference.partition(":")
    if source is None:
        raise Mistake(f"`{reference}` can only be resolved while a config file is read")
    if not name or "\0" in name:
        raise Mistake(f"`{kind}:` names nothing", f"write `{kind}:` and a name behind it")
    if not source.resolves:
        return Secret(reference)
    return Secret({"env": _from_environment, "file": _from_file, "credential": _from_credential}[kind](name, source))


def _from_environment(name: str, source: Source) -> str:
    value = source.environ.get(name)
    if not value:
        fault = "is not set" if value is None else "is empty"
        raise _unresolved(f"env:{name}", f"{name} {fault}", f"export {name} where Gatehouse is started")
    return value


def _from_file(name: str, source: Source) -> str:
    return _read(source.path(name), f"file:{name}", "create that file, readable by Gatehouse alone (mode 0600)")


def _from_credential(name: str, source: Source) -> str:
    folder = source.environ.get("CREDENTIALS_DIRECTORY")
    reference = f"credential:{name}"
    hint = f"add `LoadCredential={name}:/path/to/it` to the systemd unit, or use `file:` or `env:`"
    if not folder:
        raise _unresolved(reference, "systemd has given this process no credentials", hint)
    if "/" in name or name in {".", ".."}:
        raise _unresolved(reference, "a credential's name holds no slash", hint)
    return _read(Path(folder, name), reference, hint)


def _read(path: Path, reference: str, hint: str) -> str:
    try:
        value = path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        fault = f"{path}: {error.strerror or 'it cannot be read'}"
    except ValueError:  # The decoder's own message would quote the content.
        fault = f"{path} is not UTF-8 text"
    else:
        if value:
            return value
        fault = f"{path} is empty"
    raise _unresolved(reference, fault, hint)


def _unresolved(reference: str, fault: str, hint: str) -> Mistake:
    return Mistake(f"`{reference}` cannot be resolved: {fault}", hint)
