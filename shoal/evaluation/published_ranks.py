"""The ranks that the FCAC paper prints beside each figure of tables 3 and 4, and what it concludes from them.

Its ranks are of figures before rounding, so they differ where the printed figures are equal.
"""

from __future__ import annotations

from typing import Final

from shoal.evaluation.splits import Split

COLUMNS: Final = ("kmeans", "kfed", "ffcm", "mufc", "fcac")
"""the algorithms in the order of the tables; ffcm is the column FedFCM"""
RANKS: Final[dict[Split, dict[str, tuple[str, str, str]]]] = {
    "iid": {
        "hill_valley": ("34521", "35421", "35421"),
        "ozone": ("54123", "34251", "34251"),
        "bioresponse": ("54123", "54231", "54231"),
        "phoneme": ("34215", "12345", "12345"),
        "optdigits": ("23514", "13524", "13524"),
        "pendigits": ("34521", "24531", "24531"),
        "mozilla4": ("13254", "45231", "45231"),
        "magic_telescope": ("23541", "23541", "23541"),
        "fashion_mnist": ("32514", "12534", "12534"),
        "skin": ("43251", "34521", "34521"),
    },
    "niid": {
        "hill_valley": ("53421", "53421", "53421"),
        "ozone": ("53124", "24531", "24531"),
        "bioresponse": ("43125", "45321", "45321"),
        "phoneme": ("21435", "15423", "15423"),
        "optdigits": ("23514", "13524", "13524"),
        "pendigits": ("34521", "24531", "24531"),
        "mozilla4": ("31425", "35421", "35421"),
        "magic_telescope": ("23541", "32541", "32541"),
        "fashion_mnist": ("32514", "23514", "23514"),
        "skin": ("43251", "34521", "34521"),
    },
}
"""by split and data set: one digit for each column, by ARI, AMI and NMI"""
AVERAGE: Final[dict[Split, tuple[float, ...]]] = {
    "iid": (2.700, 3.533, 3.633, 2.900, 2.233),
    "niid": (2.833, 3.400, 4.200, 2.333, 2.233),
}
"""the last line of tables 3 and 4"""
EPSILONS: Final = (15.0, 25.0, 50.0, 75.0)
"""of section 5.3.4, figure 11, which has diagrams and no figures"""
