"""The health check of the container: asks the gateway for /healthz through its control socket. Exits with 0 or 1.

It works with every http.host and http.port. Starting `gatehouse status` each time would cost ten times as much.
"""

import socket
import sys

CONTROL_SOCKET = "/var/lib/gatehouse/control.sock"
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

try:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(4)
        connection.connect(sys.argv[1] if len(sys.argv) > 1 else CONTROL_SOCKET)
        connection.sendall(REQUEST)
        status = connection.recv(64).split(b" ")[1:2]
except OSError as error:
    sys.exit(f"The gateway does not answer: {error}")
sys.exit(0 if status == [b"200"] else f"The gateway answers {status}.")
