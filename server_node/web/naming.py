"""Who may name a cluster over HTTP, and what the request must look like.

Naming is the only request that changes something. Until people can log in, it is accepted from this machine alone and
never from a page of another site: a browser on this machine can be made to send requests by any page that it shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

from server_node.name import name_request
from shoal.config.contract import Contract
from shoal.errors import SettingsError
from shoal.protocol.messages import ClusterName

BODY_BYTES_MAX = 4096
"""a name of 100 characters, each written as two escapes of six bytes, has 1200"""
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""headers of a proxy: it runs on this machine, but the one who sent the request may not"""
FROM_THIS_PAGE = ("same-origin", "none", None)
"""values of Sec-Fetch-Site: from a page of this server, typed by a person, or from a program that is no browser"""
ONLY_HERE = "clusters are named from the server's own machine only; elsewhere use shoal name"


def check_sender(request: Request) -> None:
    """Raises `HTTPException`: 403 for another machine or the page of another site, 415 for a body that is not JSON."""
    headers = request.headers
    peer = request.client.host if request.client else ""
    if not is_loopback(peer) or any(name in headers for name in FORWARDED):
        raise HTTPException(403, ONLY_HERE)
    host = headers.get("host", "")
    # A site whose name has been made to resolve to this machine is of the same origin, so the name must be checked too.
    if not is_loopback(_hostname(f"//{host}")):
        raise HTTPException(403, ONLY_HERE)
    origin = headers.get("origin")
    foreign = origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}")
    if foreign or headers.get("sec-fetch-site") not in FROM_THIS_PAGE:
        raise HTTPException(403, "pages of other sites may not name clusters")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "send the name as JSON, with Content-Type: application/json")


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


def is_loopback(host: str) -> bool:
    """Whether this host name or address is this machine for itself, and by its form alone."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
