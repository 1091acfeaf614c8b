"""Three clients that hold different clusters: what each algorithm sends, and what the federation
finds.

The server never sees a row. FCAC's clients send the nodes they have learnt; federated k-means sends
sums, in rounds.
"""

from __future__ import annotations

import numpy as np

from shoal import FederatedKMeans
from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.streaming import Contribution

CENTRES = np.array([(0.2, 0.2), (0.8, 0.2), (0.5, 0.8)])


def main() -> None:
    """Client i holds the clusters i and i + 1."""
    rng = np.random.default_rng(0)
    clients = [
        np.concatenate(
            [rng.normal(CENTRES[(number + shift) % 3], 0.03, size=(500, 2)) for shift in (0, 1)]
        )
        for number in range(3)
    ]

    server = CAEFC()
    for number, rows in enumerate(clients):
        client = CAPlus()
        client.learn(rng.permutation(rows))
        nodes = client.contribute()
        print(
            f"FCAC: client {number} learnt {len(rows)} rows and sends {len(nodes['weight'])} nodes"
        )
        server.absorb([Contribution(f"client-{number}", 1, nodes)], key=bytes([number]))
    print("FCAC: clusters of the three centres:", server.predict(CENTRES))

    model = FederatedKMeans(n_clusters=3).fit(clients)
    print(f"k-means: centres after {model.n_rounds_} rounds:")
    print(model.cluster_centers_.round(2))


if __name__ == "__main__":
    main()
