"""The figures that the FCAC paper prints for FCAC: tables 3 and 4.

Source: N. Masuyama, Y. Nojima, Y. Toda, C. K. Loo, H. Ishibuchi, N. Kubota, "Privacy-preserving continual
federated clustering via adaptive resonance theory" (2023): mean and population standard deviation of 20
trials without noise; table 3 is the IID split, table 4 the non-IID one; table 2 has the numbers of clients.
"""

from __future__ import annotations

from typing import Final

from shoal.evaluation.results import Figure
from shoal.evaluation.splits import Split

MEASURES: Final = ("ari", "ami", "nmi", "nodes", "clusters")
TRIALS: Final = 20


def _row(*pairs: tuple[float, float]) -> dict[str, Figure]:
    return {measure: Figure(mean, sd) for measure, (mean, sd) in zip(MEASURES, pairs, strict=True)}


FCAC: Final[dict[Split, dict[str, dict[str, Figure]]]] = {
    "iid": {
        "hill_valley": _row((0.0011, 0.0014), (0.0025, 0.0022), (0.0076, 0.0037), (19.9, 4.0), (11.6, 4.2)),
        "ozone": _row((-0.0246, 0.0173), (0.0221, 0.0049), (0.0268, 0.0039), (45.9, 13.1), (29.5, 11.6)),
        "bioresponse": _row((0.0003, 0.0063), (0.0117, 0.0067), (0.0151, 0.0075), (215.0, 14.9), (18.6, 11.1)),
        "phoneme": _row((0.0659, 0.0312), (0.1136, 0.0115), (0.1149, 0.0113), (46.8, 10.5), (26.9, 10.2)),
        "optdigits": _row((0.4425, 0.0625), (0.5937, 0.0352), (0.5986, 0.0351), (72.4, 21.1), (41.0, 18.9)),
        "pendigits": _row((0.6185, 0.0507), (0.7180, 0.0275), (0.7195, 0.0275), (106.2, 16.6), (34.4, 13.4)),
        "mozilla4": _row((-0.0106, 0.0312), (0.1003, 0.0156), (0.1026, 0.0162), (297.3, 91.7), (162.6, 72.8)),
        "magic_telescope": _row((0.0993, 0.0442), (0.0900, 0.0299), (0.0908, 0.0302), (158.1, 42.1), (27.1, 15.2)),
        "fashion_mnist": _row((0.2415, 0.0675), (0.4607, 0.0375), (0.4613, 0.0375), (83.6, 20.8), (35.3, 14.9)),
        "skin": _row((0.1276, 0.2579), (0.2127, 0.2002), (0.2127, 0.2002), (80.3, 12.2), (14.9, 8.4)),
    },
    "niid": {
        "hill_valley": _row((0.0006, 0.0011), (0.0013, 0.0024), (0.0057, 0.0031), (18.2, 3.9), (9.3, 3.3)),
        "ozone": _row((-0.0283, 0.0189), (0.0202, 0.0049), (0.0254, 0.0045), (48.8, 20.0), (32.4, 17.5)),
        "bioresponse": _row((-0.0014, 0.0024), (0.0122, 0.0070), (0.0157, 0.0080), (185.6, 20.1), (20.8, 12.0)),
        "phoneme": _row((0.0513, 0.0204), (0.1050, 0.0084), (0.1063, 0.0082), (45.3, 9.0), (27.5, 10.3)),
        "optdigits": _row((0.4089, 0.0469), (0.5669, 0.0281), (0.5725, 0.0288), (69.3, 22.8), (44.9, 23.6)),
        "pendigits": _row((0.5836, 0.0656), (0.6994, 0.0323), (0.7010, 0.0322), (101.2, 19.1), (32.7, 11.2)),
        "mozilla4": _row((-0.0269, 0.0421), (0.0945, 0.0198), (0.0969, 0.0200), (295.8, 66.2), (151.8, 60.1)),
        "magic_telescope": _row((0.1268, 0.0259), (0.1072, 0.0139), (0.1079, 0.0140), (143.3, 24.3), (22.3, 9.8)),
        "fashion_mnist": _row((0.2877, 0.0590), (0.4846, 0.0305), (0.4852, 0.0305), (77.4, 23.3), (41.9, 18.1)),
        "skin": _row((0.2245, 0.2451), (0.3054, 0.1916), (0.3054, 0.1916), (72.2, 11.9), (18.7, 10.2)),
    },
}
"""by split and data set of the paper"""
