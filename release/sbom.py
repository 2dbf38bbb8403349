"""The packages that Gatehouse needs: a bill of materials (CycloneDX), their licences and their exact versions."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from gateway.distribution import NAME
from gateway.errors import Refused
from release.process import UV, run

EXTRAS = ("acp", "documents", "mcp", "openclaw", "postgres", "s3", "sql")
"""All extras of a running gateway. `testing` is for people who write channels."""
_SPECIFICATION = SchemaVersion.V1_6
_LICENCES = {"agent-client-protocol": "Apache-2.0"}
"""The licences of packages whose metadata names none, as their licence files say."""


def make_environment(tree: Path, wheel: Path, folder: Path, extras: tuple[str, ...] = EXTRAS) -> Path:
    """Install the wheel with the locked versions of its packages, and return the interpreter."""
    run(UV, "venv", "--quiet", "--python", sys.executable, folder, cwd=tree)
    python = folder / "bin/python"
    constraints = [word for name in ("run", "dev") for word in ("--constraint", str(tree / f"requirements/{name}.txt"))]
    asked = f"{NAME}[{','.join(extras)}] @ {wheel.as_uri()}"
    run(UV, "pip", "install", "--quiet", "--python", python, *constraints, asked, cwd=tree)
    return python


def locked_versions(python: Path, tree: Path) -> dict[str, str]:
    """Return the versions of all packages in an environment, except Gatehouse's own."""
    listed = json.loads(run(UV, "pip", "list", "--format", "json", "--python", python, cwd=tree))
    return {each["name"]: each["version"] for each in listed if each["name"] != NAME}


def bill_of_materials(python: Path, version: str, tree: Path) -> str:
    """Describe the packages of an environment. Those of extras are marked as optional."""
    base = {_normal(line.split("==")[0]) for line in (tree / "requirements/run.txt").read_text().splitlines()}
    words = ("environment", "--no-validate", "--output-reproducible", "--of", "JSON")
    project = ("--pyproject", tree / "pyproject.toml")
    text = run(_beside("cyclonedx-py"), *words, "--sv", _SPECIFICATION.to_version(), *project, python, cwd=tree)
    bill: dict[str, Any] = json.loads(text)  # Any: JSON.
    bill["metadata"]["component"] |= {"version": version, "purl": f"pkg:pypi/{NAME}@{version}"}
    # Gatehouse is the root component already.
    bill["components"] = [each for each in bill["components"] if each["name"] != NAME]
    bill["dependencies"] = [each for each in bill["dependencies"] if each["ref"] != f"{NAME}=={version}"]
    for component in bill["components"]:
        name = _normal(component["name"])
        component["scope"] = "required" if name in base else "optional"
        if name in _LICENCES:
            component["licenses"] = [{"license": {"id": _LICENCES[name], "acknowledgement": "concluded"}}]
    text = json.dumps(bill, indent=2, sort_keys=True) + "\n"
    if problem := JsonStrictValidator(_SPECIFICATION).validate_str(text):
        raise Refused(f"The bill of materials is not valid CycloneDX {_SPECIFICATION.to_version()}: {problem}")
    return text


def licences(python: Path, tree: Path) -> str:
    """Return a table of all packages with their licences. Raises `Refused` if a licence is unknown."""
    words = (f"--python={python}", "--from=mixed", "--with-urls", "--with-system", "--ignore-packages", NAME)
    rows, unknown = [], []
    for each in json.loads(run(_beside("pip-licenses"), *words, "--format=json", cwd=tree)):
        licence = _LICENCES.get(_normal(each["Name"]), each["License"])
        if licence == "UNKNOWN":
            unknown.append(each["Name"])
        rows.append(f"| {each['Name']} | {each['Version']} | {' '.join(licence.split())} | {each['URL']} |")
    if unknown:
        raise Refused(
            f"The metadata of these packages names no licence: {', '.join(unknown)}. "
            "Read their licence files, and add what they say to release/sbom.py."
        )
    return "\n".join(["| package | version | licence | home page |", "|---|---|---|---|", *rows, ""])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _beside(program: str) -> Path:
    return Path(sys.executable).with_name(program)
