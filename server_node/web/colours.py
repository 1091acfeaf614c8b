"""Which colour a cluster is drawn in: the one its nodes had before, whatever number it has now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count


def slots(node_id: Sequence[int], cluster: Sequence[int], clusters: int, before: Mapping[int, int]) -> list[int]:
    """The colour slot (0, 1, 2, ...) of each of `clusters` clusters.

    `node_id` and `cluster` tell the cluster of each node (-1 for none), `before` the slot each node was
    drawn in last time. A cluster takes the slot that most of its nodes had; a slot wanted twice goes to
    the cluster with more of them. The others, oldest node first, take the smallest slots that are free.
    """
    votes = Counter(
        (number, before[node]) for node, number in zip(node_id, cluster, strict=True) if number >= 0 and node in before
    )
    given: dict[int, int] = {}
    taken: set[int] = set()
    for (number, slot), _ in sorted(votes.items(), key=lambda vote: (-vote[1], vote[0][1], vote[0][0])):
        if number not in given and slot not in taken:
            given[number] = slot
            taken.add(slot)
    oldest: dict[int, int] = {}
    for node, number in zip(node_id, cluster, strict=True):
        oldest[number] = min(node, oldest.get(number, node))
    free = (slot for slot in count() if slot not in taken)
    for number in sorted(set(range(clusters)) - set(given), key=lambda number: (oldest.get(number, 2**63), number)):
        given[number] = next(free)
    return [given[number] for number in range(clusters)]
