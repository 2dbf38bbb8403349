"""Whether the gateway could listen where it is told to. It blocks."""

import errno
import socket

from config import HttpSettings
from gateway.doctor.finding import Finding, fine, wrong

__all__ = ["port"]


def port(http: HttpSettings) -> Finding:
    """Take the port for a moment, as a start does; to be asked only while no daemon runs."""
    where = f"{http.host} port {http.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            http.host, http.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as trouble:
        if trouble.errno == errno.EADDRINUSE:
            return wrong("port", f"{where} is taken by another program.", "Stop that one, or set another http.port.")
        said = f"Nothing can listen on {where}: {trouble.strerror or trouble}."
        return wrong("port", said, "Set http.host to an address of this machine and http.port to one above 1023.")
    return fine("port", f"{where} is free.")
