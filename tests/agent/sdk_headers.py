"""The headers of a request that have to be the same as those of the official SDKs."""

_NOT_COMPARED = {"user-agent", "connection", "content-length", "host", "accept-encoding"}
"""Also the headers of the SDKs' telemetry, which begin with `x-stainless-`. On Python 3.14 the SDKs accept zstd."""


def compared(headers: dict[str, str]) -> dict[str, str]:
    lower = {name.lower(): value for name, value in headers.items()}
    return {
        name: value
        for name, value in lower.items()
        if name not in _NOT_COMPARED and not name.startswith("x-stainless-")
    }
