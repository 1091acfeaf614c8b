"""A client made from the server's own OpenAPI document: one method for each operation.

shoal demo &
python examples/http_client.py http://127.0.0.1:8765
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any


class Client:
    """`client.get_clusters(model="fcac")` is `GET /v1/clusters?model=fcac`; `client.operations` has
    all names."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.operations = {
            operation["operationId"]: (method.upper(), path, operation)
            for path, methods in self._send("GET", "/v1/openapi.json")["paths"].items()
            for method, operation in methods.items()
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.operations:
            raise AttributeError(f"no operation {name}; there are {', '.join(self.operations)}")
        method, path, operation = self.operations[name]
        known = {parameter["name"]: parameter["in"] for parameter in operation["parameters"]}

        def call(body: Any = None, media_type: str = "application/json", **given: Any) -> Any:
            if unknown := sorted(set(given) - set(known)):
                raise TypeError(f"{name} takes {', '.join(known)}, not {unknown[0]}")
            filled = path.format(
                **{key: given[key] for key, place in known.items() if place == "path"}
            )
            query = urllib.parse.urlencode(
                {key: value for key, value in given.items() if known[key] == "query"}
            )
            return self._send(method, f"{filled}?{query}", body, media_type)

        call.__doc__ = operation["summary"]
        return call

    def _send(
        self, method: str, path: str, body: Any = None, media_type: str = "application/json"
    ) -> Any:
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = self._headers | ({"Content-Type": media_type} if content is not None else {})
        request = urllib.request.Request(self._url + path, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(json.load(error)["detail"]) from None


def main(url: str) -> None:
    client = Client(url)
    clusters = client.get_clusters()
    for cluster in clusters["clusters"]:
        print(
            f"cluster {cluster['identity']}: {cluster['recent_share']:.0%} of the recent readings,"
            f" {cluster['name'] or cluster['label']}"
        )
    centres = [cluster["centre"] for cluster in clusters["clusters"] if cluster["centre"]]
    names = [feature["name"] for feature in clusters["features"]]
    found = client.post_predict(
        body={"rows": [dict(zip(names, centre, strict=True)) for centre in centres]}
    )
    print("their centres fall to", found["identities"])
    for event in client.get_events(limit=3)["events"]:
        print(event["text"])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8765")
