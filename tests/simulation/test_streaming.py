"""The federation in memory runs every streaming algorithm, not only FCAC."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.algorithms.registry import counting_names, streaming_algorithm, streaming_names
from shoal.algorithms.streaming import Contribution
from shoal.errors import InvalidState
from shoal.protocol.codec import pack, unpack
from shoal.simulation.streaming import StreamingFederation

ROWS = np.random.default_rng(0).normal(size=(240, 2)) * 0.1 + np.repeat(
    [[0.0, 0.0], [1.0, 1.0]], 120, axis=0
)


@pytest.fixture(params=[name for name in streaming_names() if name not in counting_names()])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_is_the_client_halves_and_the_server_half_of_the_algorithm(name: str) -> None:
    algorithm = streaming_algorithm(name)
    federation = StreamingFederation(name, {}, 2, n_clients=2, seed=5)
    clients = [algorithm.client({}, 2) for _ in range(2)]
    server = algorithm.server({}, 2)
    for call, rows in enumerate(np.split(ROWS, 4)):
        federation.learn(rows, None)
        for number, client in enumerate(clients):
            client.learn(rows[number::2])
        contributions = [
            Contribution(str(number), call, client.contribute())
            for number, client in enumerate(clients)
        ]
        server.absorb(contributions, f"5:{call}".encode())
    assert pack(federation.server.state()) == pack(server.state())


def test_a_restored_federation_continues_bit_for_bit(name: str) -> None:
    federation, restored = (StreamingFederation(name, {}, 2, n_clients=3, seed=1) for _ in range(2))
    federation.learn(ROWS[:120], None)
    restored.restore(unpack(pack(federation.state())))
    for simulated in (federation, restored):
        simulated.learn(ROWS[120:], np.arange(120) % 4)
    assert pack(federation.state()) == pack(restored.state())


def test_a_federation_of_another_width_is_refused(name: str) -> None:
    federation = StreamingFederation(name, {}, 2, n_clients=1, seed=0)
    federation.learn(ROWS, None)
    with pytest.raises(InvalidState, match="width"):
        StreamingFederation(name, {}, 3, n_clients=1, seed=0).restore(federation.state())
