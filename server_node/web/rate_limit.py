"""Middleware that limits the requests of one address: a bucket of tokens that fills at a constant rate."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.telemetry.events import log_event

UNLIMITED = ("/livez", "/readyz")
"""paths of health checks"""
BURST = 2.0
"""seconds of the rate that one address may use at once"""
ADDRESSES_MAX = 4096
"""addresses that are remembered: those seen last"""
LOG_S = 60.0
"""at most one line of the log about an address in this time"""


class RateLimit:
    """Answers 429 to an address that sends more than `per_s` requests a second. `clock` is monotonic, seconds."""

    def __init__(self, app: ASGIApp, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._per_s, self._clock = app, per_s, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """address -> (requests it may send at once, when that was counted)"""
        self._logged: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNLIMITED or self._per_s <= 0 or not scope["client"]:
            await self._app(scope, receive, send)
            return
        address = network_of(scope["client"][0])
        wait_s = self.take(address)
        if wait_s == 0:
            await self._app(scope, receive, send)
            return
        self._log(address)
        error = f"more than {self._per_s:g} requests a second from your address; wait and send fewer"
        await JSONResponse({"error": error}, 429, {"retry-after": str(math.ceil(wait_s))})(scope, receive, send)

    def take(self, address: str) -> float:
        """Count one request of this address; 0 if it may be answered, else the seconds until the next one may."""
        now, full = self._clock(), max(1.0, BURST * self._per_s)
        left, counted_at = self._buckets.get(address, (full, now))
        left = min(full, left + (now - counted_at) * self._per_s)
        allowed = left >= 1
        self._buckets[address] = (left - allowed, now)
        self._buckets.move_to_end(address)
        while len(self._buckets) > ADDRESSES_MAX:
            gone, _ = self._buckets.popitem(last=False)
            self._logged.pop(gone, None)
        return 0.0 if allowed else (1 - left) / self._per_s

    def _log(self, address: str) -> None:
        now = self._clock()
        if now >= self._logged.get(address, -math.inf) + LOG_S:
            self._logged[address] = now
            log_event("requests_limited", logging.WARNING, address=address)


def network_of(address: str) -> str:
    """The address, or for version 6 its network of 64 bits, which one client has as a whole."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(IPv6Address(int(parsed) >> 64 << 64))
    return address
