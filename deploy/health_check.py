"""Whether a process answers: `health_check.py PORT PATH` ends with 0 when http://127.0.0.1:PORT/PATH says 200.

For health checks, which are made every few seconds by each container: nothing is imported that takes time.
"""

import socket
import sys

TIMEOUT_S = 3.0


def main() -> int:
    """0: it answers 200. 1: it does not, and why."""
    port, path = sys.argv[1:]
    try:
        with socket.create_connection(("127.0.0.1", int(port)), TIMEOUT_S) as spoken:
            spoken.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
            answer = b"".join(iter(lambda: spoken.recv(4096), b"")).decode(errors="replace")
    except OSError as silent:
        print(silent)
        return 1
    status, _, rest = answer.partition("\r\n")
    print(rest.partition("\r\n\r\n")[2].strip()[:200])
    return 0 if status.split(" ")[1:2] == ["200"] else 1


if __name__ == "__main__":
    sys.exit(main())
