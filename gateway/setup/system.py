"""Setting up the machine's service: all may read its configuration, and its secrets are credentials of systemd."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gateway.service_units import Place
from gateway.setup.plan import Plan

__all__ = ["credentials", "drop_in", "for_service"]

_HEAD = "# Written by `gatehouse setup`: secrets that systemd hands to the service, and to nobody else.\n[Service]\n"
_LINE = "LoadCredential="


def credentials(where: Place, environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that has the service's credentials: the files beside its configuration."""
    return {**environ, "CREDENTIALS_DIRECTORY": str(where.config.parent)}


def for_service(plan: Plan) -> Plan:
    """Name the secrets as the service finds them: it cannot read files of root."""
    kept = {f"file:{name}": f"credential:{name}" for name in plan.secrets}
    values = {key: kept.get(value, value) if isinstance(value, str) else value for key, value in plan.values.items()}
    return replace(plan, values=values)


def drop_in(where: Place, names: Iterable[str]) -> str:
    """Return what has systemd load these secrets, and those that it has loaded until now."""
    wanted = {f"{_LINE}{name}:{where.config.parent / name}" for name in names}
    return _HEAD + "".join(f"{line}\n" for line in sorted(wanted | _lines(where.credentials)))


def _lines(path: Path) -> set[str]:
    if not path.exists():
        return set()
    return {line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(_LINE)}
