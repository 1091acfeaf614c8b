"""Health check of a container: `health_check.py PORT PATH` exits with 0 when 127.0.0.1:PORT answers
PATH with 200.

For processes without HTTP: `health_check.py connected` when this container has a connection to
another one, as to a broker; `health_check.py written FILE SECONDS` when FILE, or its write-ahead
log, was written within these seconds.

Where SHOAL_SERVER_TOKEN_FILE is set it sends the token in that file, and where
SHOAL_SERVER_CERTIFICATE_FILE is set it connects by TLS. Every container runs it every few seconds,
so it imports nothing that is slow to load.
"""

import os
import socket
import sys
import time

TIMEOUT_S = 3.0
ESTABLISHED = "01"
"""state of a connection in /proc/net"""
LOOPBACKS = ("0100007F", "0" * 24 + "01000000")
"""127.0.0.1 and ::1 as /proc/net has them: in hexadecimal, little-endian by 32 bits"""


def main() -> int:
    """0 when all is well, otherwise 1. Prints the start of the body, or the reason."""
    match sys.argv[1:]:
        case ["connected"]:
            is_well = has_connection("/proc/net/tcp") or has_connection("/proc/net/tcp6")
            return exit_code(is_well, "no connection to another container")
        case ["written", file, seconds]:
            age = age_s(file)
            return exit_code(age <= float(seconds), f"{file} was not written for {age:.0f} s")
    port, path = sys.argv[1:]
    return answers(port, path)


def exit_code(is_well: bool, problem: str) -> int:
    """0 when all is well, else 1, with the problem printed."""
    if is_well:
        return 0
    print(problem)
    return 1


def has_connection(table: str) -> bool:
    """Whether a table of /proc/net has an established connection that leaves this container."""
    try:
        with open(table, encoding="ascii") as file:
            lines = file.readlines()
    except OSError:
        # A kernel without IPv6 has no tcp6.
        return False
    # The first line is the heading.
    for line in lines[1:]:
        fields = line.split()
        remote = fields[2]
        state = fields[3]
        if state == ESTABLISHED and not remote.startswith(LOOPBACKS):
            return True
    return False


def age_s(file: str) -> float:
    """Seconds since a file or its write-ahead log was written; infinite without it."""
    times = [os.stat(name).st_mtime for name in (file, f"{file}-wal") if os.path.exists(name)]
    if not times:
        return float("inf")
    return time.time() - max(times)


def answers(port: str, path: str) -> int:
    """0 for a status of 200, otherwise 1. Prints the start of the body, or the error."""
    try:
        request = f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n{authorization()}\r\n"
        with connected(int(port)) as connection:
            connection.sendall(request.encode())
            received = b""
            # A response of HTTP/1.0 ends with its connection.
            while chunk := connection.recv(4096):
                received += chunk
    except OSError as error:
        print(error)
        return 1
    status, _, rest = received.decode(errors="replace").partition("\r\n")
    print(rest.partition("\r\n\r\n")[2].strip()[:200])
    return 0 if status.split(" ")[1:2] == ["200"] else 1


def authorization() -> str:
    """The header with the token, if there is one."""
    file = os.environ.get("SHOAL_SERVER_TOKEN_FILE")
    if not file:
        return ""
    with open(file, encoding="ascii") as token:
        return f"Authorization: Bearer {token.read().strip()}\r\n"


def connected(port: int) -> socket.socket:
    """A connection to the process in this container."""
    plain = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    if not os.environ.get("SHOAL_SERVER_CERTIFICATE_FILE"):
        return plain
    import ssl  # noqa: PLC0415 - slow to load, and most containers need none

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Its certificate names the server and not 127.0.0.1; no other machine can listen there.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(plain)


if __name__ == "__main__":
    sys.exit(main())
