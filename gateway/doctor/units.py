"""The installed service against the one that this version ships. It blocks."""

import os
from collections.abc import Iterator
from pathlib import Path

from gateway.doctor.finding import Finding, fine, odd, wrong
from gateway.service_units import Place, Scope, place, program_of, same_unit, shipped

__all__ = ["units"]


def units(home: Path, root: Path = Path("/")) -> list[Finding]:
    return list(_found(home, root)) or [
        fine("service", "It is not installed as a service (`gatehouse service install`).")
    ]


def _found(home: Path, root: Path) -> Iterator[Finding]:
    for scope in Scope:
        where = place(scope, home, root)
        if not where.unit.exists():
            continue
        for path, wanted in shipped(where).items():
            try:
                yield _compared(where, path, path.read_text(encoding="utf-8"), wanted, home)
            except FileNotFoundError:
                yield wrong("service", f"There is no {path}, which {where.unit.name} needs.", _again(scope))
            except (OSError, ValueError) as trouble:
                yield odd("service", f"{path} cannot be read ({trouble}).", "Look at it as root.")


def _compared(where: Place, unit: Path, text: str, wanted: str, home: Path) -> Finding:
    program = program_of(text, home)
    if unit.suffix == ".service" and (program is None or not os.access(program, os.X_OK)):
        return wrong("service", f"{unit} starts {program or 'nothing'}, which cannot be run.", _again(where.scope))
    if not same_unit(text, wanted):
        return odd("service", f"{unit} differs from the unit of this version.", _again(where.scope))
    return fine("service", f"{unit} is the unit of this version.")


def _again(scope: Scope) -> str:
    return (
        f"`gatehouse service install --{scope}` writes it anew and keeps yours beside it; changes belong in a drop-in."
    )
