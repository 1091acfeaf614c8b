"""Makes the counts of a client's windows private: the mechanism behind models that learn from counts."""

from __future__ import annotations

import hashlib

from shoal.errors import SettingsError
from shoal.privacy.count_noise import CountNoise, Counts
from shoal.privacy.keyed import KEY_BYTES, SOURCE_BYTES

_VERSION = b"shoal counts 1"


class CountMechanism:
    """Adds noise to the counts of one client's windows for one model. It keeps nothing between windows.

    The noise is a secret function of everything that it depends on: the key, the client, its source, the model, the
    tables, the window, the plan that the window was counted under, and the true counts. The same window counted again
    under the same plan gets the same noise, so that repeating it reveals nothing new; anything else gets other noise.
    """

    def __init__(self, noise: CountNoise, key: bytes, client: str, source: bytes, model: str) -> None:
        """`key`: the client's noise key; `source`: identity of its readings log. Raises `SettingsError`."""
        if len(key) != KEY_BYTES or len(source) != SOURCE_BYTES:
            raise SettingsError(f"a noise key has {KEY_BYTES} bytes and the identity of a source {SOURCE_BYTES}")
        self._noise = noise
        fields = [client.encode(), model.encode()]
        self._prefix = b"".join(
            [key, _VERSION, source, noise.digest(), *(hashlib.sha256(field).digest() for field in fields)]
        )

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that show whether key, client, source, model and tables are those of an earlier run."""
        return hashlib.shake_256(self._prefix).hexdigest(8)

    def release(self, counts: Counts, window: tuple[int, int, int], plan: bytes) -> Counts:
        """True counts (cells,) -> private counts (cells,).

        `window`: its number, and the places of the first and the last reading in it; `plan`: the 32 bytes that
        identify the plan it was counted under.
        """
        name = b"".join(part.to_bytes(8, "little") for part in window)
        seed = hashlib.sha256(self._prefix + name + plan + counts.astype("<i8").tobytes()).digest()
        return counts + self._noise.draw(seed, len(counts))
