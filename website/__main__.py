"""Builds the site into `site/`: the Markdown files of the repository, and a reference that is made from the code.

The pages keep the places that they have in the repository. So a link between them works there and on the site.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from bench.daemon import started
from website.api import api_page
from website.commands import commands_page
from website.configuration import configuration_page
from website.log_events import log_events_page
from website.metrics import metrics_page

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
    "config/gatehouse.example.toml",
    "deploy",
    "docs",
    "examples",
)
"""Files and folders with Markdown, and what it links to."""
DOCUMENT = "reference/openapi.json"
"""The description of the API. A folder with it contains a site, which the next one replaces."""


def main(arguments: Sequence[str]) -> int:
    site = Path(arguments[0]) if arguments else ROOT / "site"
    if site.exists() and any(site.iterdir()) and not (site / DOCUMENT).is_file():
        print(f"{site} contains something other than the site. Name a new folder.", file=sys.stderr)
        return 1
    with TemporaryDirectory() as folder:
        source = Path(folder)
        collect_pages(source / "pages")
        shutil.copy(ROOT / "website" / "zensical.toml", source)
        zensical = Path(sys.executable).with_name("zensical")
        # A link to a page or a heading that does not exist is a warning, and `--strict` makes it an error.
        built = subprocess.run([zensical, "build", "--strict"], cwd=source, check=False)
        if built.returncode:
            return 1
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(source / "site", site)
    print(f"The site is in {site}. `python -m http.server -d {site}` shows it.")
    return 0


def collect_pages(folder: Path) -> None:
    """Copy all pages into a folder and write the reference beside them."""
    folder.mkdir()
    for name in PAGES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.py"))
        else:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    shutil.copy(ROOT / "website" / "site.css", folder)
    reference = folder / "reference"
    reference.mkdir()
    with started() as daemon, urlopen(f"{daemon.url}/api/openapi.json") as answer:  # noqa: S310 - a loopback URL.
        document = answer.read()
    (folder / DOCUMENT).write_bytes(document)
    pages = {
        "configuration": configuration_page(),
        "commands": commands_page(),
        "api": api_page(document),
        "metrics": metrics_page(),
        "log-events": log_events_page(),
        "decisions": decisions_page(),
    }
    for name, text in pages.items():
        (reference / f"{name}.md").write_text(text)


def decisions_page() -> str:
    lines = ["# Decisions\n", "Why Gatehouse is as it is, and which alternatives were considered.\n"]
    for path in sorted((ROOT / "docs" / "adr").glob("*.md")):
        number, _, title = path.read_text().partition("\n")[0].lstrip("# ").partition(". ")
        lines.append(f"- {number}: [{title}](../docs/adr/{path.name})")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
