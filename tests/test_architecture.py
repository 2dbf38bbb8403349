"""docs/architecture.md names what there is, and nothing else."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/architecture.md").read_text()
TOPS = ("config", "gateway", "channels", "tests", "bench")


def is_named(name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", PAGE) is not None


def test_every_module_of_the_core_has_its_place() -> None:
    modules = {file.name for file in (ROOT / "gateway").glob("*.py")} - {"__init__.py"}
    assert not [module for module in sorted(modules) if not is_named(module)]


def test_every_package_has_its_place() -> None:
    packages = [file.parent for top in ("gateway", "channels") for file in (ROOT / top).glob("*/__init__.py")]
    unnamed = [each for each in packages if not is_named(f"{each.relative_to(ROOT)}/")]
    assert not [each.name for each in unnamed if each.parent.name != "channels" or not is_named(each.name)]


def test_no_module_is_named_that_is_not_there() -> None:
    there = {file.name for top in TOPS for file in (ROOT / top).rglob("*.py")}
    assert set(re.findall(r"\b\w+\.py\b", PAGE)) <= there


def test_every_path_that_is_named_is_there() -> None:
    paths = re.findall(r"\b((?:config|gateway|channels|deploy|docs|tests)/[\w/.-]*\w/?)", PAGE)
    assert not [path for path in paths if not (ROOT / path).exists()]
