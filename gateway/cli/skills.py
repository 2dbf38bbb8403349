"""`gatehouse skills`: checks folders of skills."""

import os
from collections.abc import Sequence
from pathlib import Path

from config import load
from config.loader import find
from gateway.cli.common import EXIT_FAILED, EXIT_OK, command_parser, print_error
from gateway.skills.library import find_skills, prompt_lines
from gateway.text import printable
from gateway.text.plain import count


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    parser = command_parser("skills", "Check Agent Skills.", config)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="list the skills, and all problems with them",
        description="List the skills with their lines in the prompt, and all problems with them.",
    )
    check.add_argument(
        "folders",
        nargs="*",
        type=Path,
        metavar="FOLDER",
        help="a skill, or a folder that contains skills (default: skills.folders of the configuration)",
    )
    options = parser.parse_args(arguments)
    folders: Sequence[Path] = [each.absolute() for each in options.folders]
    if not folders:
        path = find(options.config, os.environ, Path.cwd(), Path.home())
        # Secrets are not resolved: this shell may not have the daemon's environment.
        folders = load(path, os.environ, resolves=False).settings.skills.folders
    if not folders:
        print("There are no skills: skills.folders is empty. Set it, or name a folder.")
        return EXIT_OK
    found = find_skills(folders)
    for line in prompt_lines(found.skills.values()):
        print(printable(line))
    for fault in found.faults:
        print_error(printable(f"{fault.folder}: {fault.reason}"))
    faults = f", {count(len(found.faults), 'problem')}" if found.faults else ""
    print(f"{count(len(found.skills), 'skill')}{faults}.")
    return EXIT_FAILED if found.faults else EXIT_OK
