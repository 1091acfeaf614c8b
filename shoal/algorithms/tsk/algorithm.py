"""The declaration of tsk: which functions run on clients and server, and which arrays travel between them."""

from __future__ import annotations

from typing import Final

from shoal.algorithms.regression import Regression
from shoal.algorithms.rounds.base import RoundsAlgorithm
from shoal.algorithms.tsk.arrays import PARAMS, STATS, epoch
from shoal.algorithms.tsk.claims import check_claims
from shoal.algorithms.tsk.client import answer
from shoal.algorithms.tsk.options import OPTIONS
from shoal.algorithms.tsk.prediction import named_target, predicted_target, rule_base, strongest_rule
from shoal.algorithms.tsk.server import combine, shift, start

TSK: Final = RoundsAlgorithm(
    name="tsk",
    snapshot=PARAMS,
    update=STATS,
    options=OPTIONS,
    start=start,
    answer=answer,
    combine=combine,
    additive=True,
    shift=shift,
    predict=strongest_rule,
    check_claims=check_claims,
    epoch=epoch,
    robust="its normal equations couple all rules, so there is no place of one rule to compare between clients",
    regression=Regression(target=named_target, predict=predicted_target, rules=rule_base),
)
