"""The daemon's log, as its settings have it and as its operator changes it while it runs."""

import sys

import structlog

from config import GatewaySettings, Loaded, LogLevel
from gateway.errors import CannotStart
from gateway.logfile import LogFile
from gateway.logs import configure, secrets_in

__all__ = ["Logs"]

log = structlog.get_logger()


class Logs:
    """Whoever makes it closes it."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._file: LogFile | None = None

    def follow(self, loaded: Loaded) -> None:
        """Log as these settings say. `CannotStart` when the file cannot be opened, and then nothing has changed."""
        file = self._wanted(loaded.settings.gateway)
        old, self._file = self._file, file
        self._loaded = loaded
        self.set_level(loaded.settings.gateway.log_level)
        if old is not None and old is not file:
            old.close()
        for warning in loaded.warnings:
            log.warning("config_odd", warning=warning)

    def set_level(self, level: LogLevel) -> None:
        """Change what is logged, until the settings are read again."""
        settings = self._loaded.settings
        configure(level, settings.gateway.log_format, secrets_in(settings), sys.stdout, self._file)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _wanted(self, gateway: GatewaySettings) -> LogFile | None:
        """Return the file to write to: the one at hand, if it is that."""
        if gateway.log_file is None:
            return None
        if self._file is not None and self._file.path == gateway.log_file:
            self._file.max_bytes, self._file.keep = gateway.log_file_bytes, gateway.log_file_count
            return self._file
        file = LogFile(gateway.log_file, max_bytes=gateway.log_file_bytes, keep=gateway.log_file_count)
        try:
            file.open()
        except OSError as trouble:
            raise CannotStart(
                f"The log file {gateway.log_file} cannot be written: {trouble.strerror}. "
                "Make its folder writable for this user, or change `gateway.log_file`."
            ) from trouble
        return file
