"""Shared by all commands: exit codes, standard streams, argument parsers, settings and output files.

`gatehouse --help` imports this module, so heavy imports stay inside the functions that need them.
"""

import argparse
import io
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TextIO

if TYPE_CHECKING:
    from config import Loaded

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BUG = 70
"""EX_SOFTWARE of sysexits.h."""
EXIT_CONFIG = 78
"""EX_CONFIG of sysexits.h: a restart cannot fix it, so the systemd unit does not restart the gateway."""
EXIT_INTERRUPTED = 130
"""As shells report Ctrl-C: 128 plus the number of SIGINT."""
EXIT_TERMINATED = 143
"""128 plus the number of SIGTERM."""


class CommandParser(argparse.ArgumentParser):
    """Reports wrong usage as one sentence instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        # argparse's messages start with a small letter and have no full stop.
        sentence = f"{message[:1].upper()}{message[1:]}"
        stop = "" if sentence.endswith((".", "?")) else "."
        raise SystemExit(fail(f"{sentence}{stop} Run `{self.prog} --help` for usage.", EXIT_USAGE))


class SettingsParser(CommandParser):
    """A parser of a command that reads the configuration. It accepts `--config`, and so does each of its subcommands.

    Parsing prints a note if there is a configuration file in the current folder, which is not used.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # Those of argparse, which it passes to the parsers of subcommands too.
        super().__init__(**options)
        # Without a default, a subcommand does not replace the file that was named before it.
        self.add_argument(
            "--config", type=Path, default=argparse.SUPPRESS, metavar="FILE", help="configuration file to use"
        )

    def parse_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:  # type: ignore[override]  # No command passes a namespace.
        from config import find_ignored  # noqa: PLC0415 - pydantic would slow down `--help`.

        options = super().parse_args(args)
        if ignored := find_ignored(options.config, os.environ, Path.cwd(), Path.home()):
            from gateway.text import printable  # noqa: PLC0415 - as above.

            note = (
                f"gatehouse: {ignored} is not used: an agent may have written it, so Gatehouse reads no configuration "
                f"from the current folder. If the file is yours, add: --config {shlex.quote(str(ignored))}"
            )
            print_error(printable(note))
        return options


def command_parser(name: str, description: str, config: Path | None) -> SettingsParser:
    """Return a parser for the command `name`. `config` is the file that was named before the command."""
    parser = SettingsParser(prog=f"gatehouse {name}", description=description)
    parser.set_defaults(config=config)
    return parser


def seconds_between(least: float, most: float) -> Callable[[str], float]:
    """Return an argparse type for a number of seconds."""

    def parse(text: str) -> float:
        seconds = _number(text)
        if not least <= seconds <= most:
            raise argparse.ArgumentTypeError(f"{text} is not a number of seconds between {least:g} and {most:g}")
        return seconds

    return parse


def positive_seconds(text: str) -> float:
    """Parse a number of seconds above 0, for argparse. There is no upper limit but infinity."""
    seconds = _number(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return seconds


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan  # Fails every comparison, as a typed `nan` does.


def load_settings(
    config: Path | None, environ: Mapping[str, str] = os.environ, *, resolves: bool = True, is_running: bool = False
) -> "Loaded":
    """Load the configuration. Raises `ConfigError` with all mistakes at once.

    Commands that talk to the running gateway pass `resolves=False`: the gateway reads its secrets from its own
    environment, and this shell may not have them. The running gateway itself passes `is_running`.
    """
    from config import find, load  # noqa: PLC0415 - pydantic would slow down `--help`.

    path = find(config, environ, Path.cwd(), Path.home())
    return load(path, environ, resolves=resolves, is_running=is_running)


def load_data_dir(config: Path | None) -> Path:
    return load_settings(config, resolves=False).settings.gateway.data_dir


@contextmanager
def output_file(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Yield a private file that appears as `path` once it is complete. Raises `Refused` if it cannot be written."""
    from config import files  # noqa: PLC0415 - pydantic would slow down `--help`.
    from gateway.errors import Refused  # noqa: PLC0415 - as above.
    from gateway.private_files import CREATE, open_private  # noqa: PLC0415 - as above.
    from gateway.text import printable  # noqa: PLC0415 - as above.

    try:
        with ExitStack() as cleanup:
            if not overwrite:
                # Reserve the name, so that two commands at the same time cannot both write it.
                os.close(open_private(path, CREATE))
                cleanup.callback(path.unlink, missing_ok=True)
            with files.atomic_writer(path) as file:
                yield file
            cleanup.pop_all()  # The file is complete, so it stays.
    except FileExistsError as error:
        raise Refused(f"{printable(str(path))} already exists. Choose another name or add --force.") from error
    except OSError as error:
        raise Refused(f"Can't write {printable(str(path))}: {error.strerror}.") from error


def repair_streams() -> None:
    """Open the standard streams that the shell has closed, and print `?` for characters the terminal cannot show.

    If a stream stayed closed, the next file we open would get its descriptor, and printed text would end up there.
    """
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115 - open until the process ends.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - as above.
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - as above.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def fail(message: object, code: int) -> int:
    """Print an error message to stderr, and return the exit code."""
    print_error(f"gatehouse: {message}")
    return code


def log_to_stderr() -> None:
    """Log warnings to stderr, and nothing below. Otherwise log lines would be in the output of a command."""
    import structlog  # noqa: PLC0415 - `--help` does not need it.

    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
    )


def print_error(text: str) -> None:
    """Print to stderr. Does nothing if stderr cannot be written."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        discard_output(sys.stderr)


def discard_output(stream: TextIO) -> None:
    """Redirect `stream` to /dev/null, so that Python does not fail again when it flushes the stream at exit."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, stream.fileno())
    os.close(null)


def common_cause(failure: Exception) -> Exception:
    """Return the one cause for which all tasks of a task group have failed, or else the whole group."""
    if not isinstance(failure, ExceptionGroup):
        return failure
    causes = [common_cause(each) for each in failure.exceptions]
    return causes[0] if len({type(cause) for cause in causes}) == 1 else failure
