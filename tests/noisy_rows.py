"""Federation files of synthetic streams with FCAC on noisy rows: every reading is learnt at once,
in no window."""

from __future__ import annotations

import re

from shoal.producers.synthetic import federation_file


def noisy_rows_file(stream: str) -> str:
    """What `shoal producer --synthetic STREAM --print-federation` prints, with FCAC in the place of
    density_tree."""
    text = federation_file(stream).replace('"density_tree"', '"fcac"')
    text = re.sub(r"^counts_epsilon = .*$", "epsilon_per_reading = 40.0", text, flags=re.MULTILINE)
    return re.sub(r"^(window_readings|options) = .*\n", "", text, flags=re.MULTILINE)
