"""The form in which a person gives the token. It loads nothing, so nothing but the form is open without a token."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from pathlib import Path

from starlette.responses import HTMLResponse, Response

PAGE = (Path(__file__).parent / "login.html").read_text(encoding="utf-8")
_STYLE = PAGE.partition("<style>")[2].partition("</style>")[0]
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


def login_form(notice: str = "") -> Response:
    """The form, with what was wrong with the token given before."""
    headers = {
        "www-authenticate": 'Bearer realm="shoal"',
        "cache-control": "no-store",
        "content-security-policy": POLICY,
        # With no-referrer, as elsewhere, browsers would send the form with the origin "null".
        "referrer-policy": "same-origin",
    }
    return HTMLResponse(PAGE.replace("{notice}", escape(notice)), 401, headers)
