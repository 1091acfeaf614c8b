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


def main() -> int:
    """0 when all is well, otherwise 1. Prints the start of the body, or the reason."""
    kind, *given = sys.argv[1:]
    if kind == "connected":
        return said(
            any(map(has_connection, ("/proc/net/tcp", "/proc/net/tcp6"))),
            "no connection to another container",
        )
    if kind == "written":
        file, seconds = given
        return said(
            age_s(file) <= float(seconds), f"{file} was not written for {age_s(file):.0f} s"
        )
    return answers(kind, *given)


def said(well: bool, otherwise: str) -> int:
    """0 when all is well, else 1, with the reason printed."""
    if not well:
        print(otherwise)
    return 0 if well else 1


def has_connection(table: str) -> bool:
    """Whether a table of /proc/net has an established connection that leaves this container."""
    try:
        with open(table, encoding="ascii") as lines:
            fields = [line.split() for line in lines][1:]
    except OSError:
        return False
    # Remote address in hexadecimal, little-endian; 01 is established.
    return any(
        each[3] == "01" and not each[2].startswith(("0100007F", "0" * 24 + "01000000"))
        for each in fields
    )


def age_s(file: str) -> float:
    """Seconds since a file or its write-ahead log was written; infinite without it."""
    times = [os.stat(name).st_mtime for name in (file, f"{file}-wal") if os.path.exists(name)]
    return time.time() - max(times) if times else float("inf")


def answers(port: str, path: str) -> int:
    """0 for a status of 200, otherwise 1. Prints the start of the body, or the error."""
    try:
        request = f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n{authorization()}\r\n"
        with connected(int(port)) as connection:
            connection.sendall(request.encode())
            response = b"".join(iter(lambda: connection.recv(4096), b"")).decode(errors="replace")
    except OSError as error:
        print(error)
        return 1
    status, _, rest = response.partition("\r\n")
    print(rest.partition("\r\n\r\n")[2].strip()[:200])
    return 0 if status.split(" ")[1:2] == ["200"] else 1


def authorization() -> str:
    """The header with the token, if there is one."""
    if not (file := os.environ.get("SHOAL_SERVER_TOKEN_FILE")):
        return ""
    with open(file, encoding="ascii") as token:
        return f"Authorization: Bearer {token.read().strip()}\r\n"


def connected(port: int) -> socket.socket:
    """A connection to the process in this container. Its certificate names the server and not
    127.0.0.1."""
    plain = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    if not os.environ.get("SHOAL_SERVER_CERTIFICATE_FILE"):
        return plain
    import ssl  # noqa: PLC0415 - slow to load, and most containers need none

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(plain)


if __name__ == "__main__":
    sys.exit(main())
