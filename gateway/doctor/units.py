"""The installed service against the one that this version ships. It blocks."""

import os
from collections.abc import Iterator
from pathlib import Path

from gateway.doctor.finding import Finding, fine, odd, wrong
from gateway.service_units import Scope, place, program_of, same_unit, shipped

__all__ = ["units"]


def units(home: Path, root: Path = Path("/")) -> list[Finding]:
    return list(_found(home, root)) or [
        fine("service", "It is not installed as a service (`gatehouse service install`).")
    ]


def _found(home: Path, root: Path) -> Iterator[Finding]:
    for scope in Scope:
        unit = place(scope, home, root).unit
        if not unit.exists():
            continue
        try:
            yield _compared(scope, unit, unit.read_text(encoding="utf-8"), home)
        except (OSError, ValueError) as trouble:
            yield odd("service", f"{unit} cannot be read ({trouble}).", "Look at it as root.")


def _compared(scope: Scope, unit: Path, text: str, home: Path) -> Finding:
    again = (
        f"`gatehouse service install --{scope}` writes it anew and keeps yours beside it; changes belong in a drop-in."
    )
    program = program_of(text, home)
    if program is None or not os.access(program, os.X_OK):
        return wrong("service", f"{unit} starts {program or 'nothing'}, which cannot be run.", again)
    if not same_unit(text, shipped(scope)):
        return odd("service", f"{unit} differs from the unit of this version.", again)
    return fine("service", f"{unit} is the unit of this version.")
