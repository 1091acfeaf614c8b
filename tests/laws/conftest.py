from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from shoal.transports import open_log
from shoal.transports.base import Log
from tests.laws.log_places import EXTERNAL, PLACES, Place


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.external] * (name in EXTERNAL))
        for name in sorted(PLACES)
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    """Every transport in turn."""
    return PLACES[request.param](request)


@pytest.fixture
def log(place: Place) -> Iterator[Log]:
    log = open_log(place.address)
    yield log
    log.close()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses: a broker outlives a test."""
    return f"law-{uuid.uuid4().hex}"
