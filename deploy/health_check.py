"""Health check of a container: `health_check.py PORT PATH` exits with 0 when http://127.0.0.1:PORT/PATH returns 200.

Every container runs it every few seconds, so it imports nothing that is slow to load.
"""

import socket
import sys

TIMEOUT_S = 3.0


def main() -> int:
    """0 for a status of 200, otherwise 1. Prints the start of the body, or the error."""
    port, path = sys.argv[1:]
    try:
        with socket.create_connection(("127.0.0.1", int(port)), TIMEOUT_S) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
            response = b"".join(iter(lambda: connection.recv(4096), b"")).decode(errors="replace")
    except OSError as error:
        print(error)
        return 1
    status, _, rest = response.partition("\r\n")
    print(rest.partition("\r\n\r\n")[2].strip()[:200])
    return 0 if status.split(" ")[1:2] == ["200"] else 1


if __name__ == "__main__":
    sys.exit(main())
