"""Who may name a cluster over HTTP, and what the request must look like.

Naming is the only request that changes something. It is accepted with the token or a session, and where the server has
no token, from this machine alone. It is never accepted from a page of another site: a browser can be made to send
requests by any page that it shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from server_node.name import name_request
from server_node.web.access import FORWARDED, host_name, is_from_this_page
from server_node.web.access_control import GRANT
from shoal.config.contract import Contract
from shoal.config.sections import is_loopback
from shoal.errors import SettingsError
from shoal.protocol.messages import ClusterName

BODY_BYTES_MAX = 4096
"""a name of 100 characters, each written as two escapes of six bytes, has 1200"""
ONLY_HERE = "without a [server] token_file, clusters are named from the server's own machine only; or use shoal name"


def check_sender(request: Request) -> None:
    """Raises `HTTPException`: 403 for one who may not name or the page of another site, 415 for a body not JSON."""
    if not may_name(request):
        raise HTTPException(403, ONLY_HERE)
    headers = request.headers
    if not is_from_this_page(headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site")):
        raise HTTPException(403, "pages of other sites may not name clusters")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "send the name as JSON, with Content-Type: application/json")


def may_name(request: Request) -> bool:
    """Whether the sender has given the token, or where the server has none, is on this machine and behind no proxy."""
    if request.scope[GRANT] != "open":
        return request.scope[GRANT] is not None
    headers = request.headers
    peer = request.client.host if request.client else ""
    if not is_loopback(peer) or any(name in headers for name in FORWARDED):
        return False
    # A site whose name has been made to resolve to this machine is of the same origin, so the name must be checked too.
    return is_loopback(host_name(headers.get("host", "")))


def parse_request(body: bytes, contract: Contract, model: str, identity: int) -> ClusterName:
    """The body `{"name": "..."}` -> the request to publish. Raises `HTTPException` (400)."""
    try:
        parsed: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, 'the body is not JSON; send {"name": "..."}') from None
    if not isinstance(parsed, Mapping) or set(parsed) != {"name"} or not isinstance(parsed["name"], str):
        raise HTTPException(400, 'there is no name; send {"name": "..."}, with an empty name to take it away')
    try:
        return name_request(contract, model, identity, parsed["name"])
    except SettingsError as wrong:
        raise HTTPException(400, str(wrong)) from None
