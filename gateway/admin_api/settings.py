"""The configuration: what is in effect and why, and changes of the keys that are safe to change from afar."""

import asyncio
import builtins
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import structlog

from config import (
    ConfigError,
    Problem,
    ReloadPlan,
    Settings,
    is_changeable,
    list_settings,
    load,
    plan_reload,
    preview_values,
    set_values,
)
from config.files import write_atomically
from config.secrets import is_reference
from gateway.access.rules import Live
from gateway.admin_api import types as t
from gateway.api.operation import ApiCall
from gateway.errors import Refused
from gateway.http.responses import HttpError
from gateway.observability.logging import secrets_in

log = structlog.get_logger()

CHANGED_SINCE = "The file has changed since you have looked at it. Read the settings again, and repeat your change."
NO_FILE = "This gateway belongs to `gatehouse chat`, which reads its settings once. Restart the chat instead."


class ConfigChanges:
    """Handles the routes of the settings. `path` is the file of the process; None in `gatehouse chat`."""

    def __init__(
        self, live: Live, path: Path | None, environ: Mapping[str, str], reload: Callable[[], Awaitable[ReloadPlan]]
    ) -> None:
        self._live = live
        self._path = path
        self._environ = environ
        self._reload = reload
        self._lock = asyncio.Lock()

    async def list(self, call: ApiCall) -> t.SettingList:
        del call
        return await asyncio.to_thread(self._list)

    def _list(self) -> t.SettingList:
        problems, warnings = self._check()
        try:
            found = list_settings(self._live.settings, self._path, self._environ)
        except ConfigError:  # The file is no TOML any more, which is one of the problems.
            found = list_settings(self._live.settings, None, self._environ)
        return t.SettingList(
            path=str(self._path or ""),
            version=self._version(),
            settings=[
                t.SettingInfo(
                    key=each.key,
                    value=each.value,
                    origin=each.origin,
                    kind=each.kind,
                    is_optional=each.is_optional,
                    is_changeable=each.is_changeable and self._path is not None,
                    needs_restart=each.needs_restart,
                    description=each.description,
                    choices=each.choices,
                    reference=each.reference,
                )
                for each in found
            ],
            problems=problems,
            warnings=warnings,
        )

    def _check(self) -> tuple[builtins.list[t.SettingsProblem], builtins.list[str]]:
        """Return what is wrong with the file as it is now. `POST /api/doctor` checks more."""
        path = self._path if self._path is not None and self._path.exists() else None
        try:
            loaded = load(path, self._environ, is_running=True)
        except ConfigError as error:
            return _problems(error.problems), []
        return [], list(loaded.warnings)

    def _version(self) -> str:
        if self._path is None or not self._path.exists():
            return ""
        return hashlib.sha256(self._path.read_bytes()).hexdigest()

    async def preview(self, call: ApiCall) -> t.SettingsPreview:
        body = call.body_as(t.SettingsBody)
        return await asyncio.to_thread(self._preview, body)

    def _preview(self, body: t.SettingsBody) -> t.SettingsPreview:
        path = self._require_path(body)
        with _as_invalid():
            edit = preview_values(path, body.changes, self._environ)
            before = load(path if path.exists() else None, self._environ, resolves=False).settings
            plan = plan_reload(before, edit.loaded.settings)
        return t.SettingsPreview(
            diff=_diff(edit.before, edit.after, (before, edit.loaded.settings)),
            applied=list(plan.applied),
            restart_needed=list(plan.restart_needed),
            warnings=list(edit.loaded.warnings),
        )

    async def apply(self, call: ApiCall) -> t.AppliedSettings:
        """Write the changes to the file, and reload it. If that is refused, the file is as it was before."""
        body = call.body_as(t.SettingsBody)
        async with self._lock:
            if body.version != await asyncio.to_thread(self._version):
                raise HttpError(HTTPStatus.CONFLICT, CHANGED_SINCE)
            preview = await asyncio.to_thread(self._preview, body)
            path = self._require_path(body)
            before = await asyncio.to_thread(_read, path)
            await asyncio.to_thread(self._write, path, body.changes)
            try:
                plan = await self._reload()
            except BaseException:
                await asyncio.shield(asyncio.to_thread(_restore, path, before))
                raise
            log.info("settings_changed", by=call.caller.name, keys=sorted(body.changes))
            return t.AppliedSettings(
                diff=preview.diff,
                applied=list(plan.applied),
                restart_needed=list(plan.restart_needed),
                warnings=preview.warnings,
                version=await asyncio.to_thread(self._version),
            )

    async def reload(self, call: ApiCall) -> t.ReloadReport:
        del call
        if self._path is None:
            raise Refused(NO_FILE)
        plan = await self._reload()
        return t.ReloadReport(applied=list(plan.applied), restart_needed=list(plan.restart_needed))

    def _write(self, path: Path, changes: Mapping[str, object]) -> None:
        with _as_invalid():
            set_values(path, changes, self._environ)

    def _require_path(self, body: t.SettingsBody) -> Path:
        """Return the file, if all keys may be changed."""
        if self._path is None:
            raise Refused(NO_FILE)
        for key in body.changes:
            if not is_changeable(key):
                raise HttpError(
                    HTTPStatus.FORBIDDEN,
                    f"The key {key} can't be changed from here. Use `gatehouse config set` on the machine.",
                )
        return self._path


@contextmanager
def _as_invalid() -> Iterator[None]:
    """Turn a `ConfigError` into the error for the client, with all problems."""
    try:
        yield
    except ConfigError as error:
        problems = [{"key": each.key, "message": each.message, "hint": each.hint} for each in _problems(error.problems)]
        sentence = "; ".join(f"{each.key} {each.message}".strip() for each in error.problems)
        raise HttpError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"The settings would not be valid: {sentence}.",
            extra={"problems": problems},
        ) from error


def _problems(problems: Iterable[Problem]) -> list[t.SettingsProblem]:
    return [t.SettingsProblem(key=each.key, message=each.message, hint=each.hint) for each in problems]


def _diff(before: str, after: str, settings: Iterable[Settings]) -> str:
    """Return the change of the file, without lines around it: those may contain anything."""
    import difflib  # noqa: PLC0415 - only here, and it compiles many expressions.

    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=0)
    text = "\n".join(lines)
    secrets = {secret.reveal() for each in settings for secret in secrets_in(each)}
    # A changed line may be an inline table with a secret in it. The longest first, as one may begin with another.
    for secret in sorted((each for each in secrets if each and not is_reference(each)), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _restore(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
        return
    target = path.resolve()  # A link to the file stays a link.
    mode = target.stat().st_mode
    write_atomically(target, content)
    target.chmod(mode & 0o777)
