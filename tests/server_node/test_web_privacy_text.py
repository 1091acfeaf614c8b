"""The privacy panel: it shows what the contract guarantees."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from shoal.config.contract import parse_contract
from shoal.config.privacy_report import spent_in_a_day
from shoal.config.resolved import resolve
from shoal.privacy.formal import EPSILON_WEAK, beliefs
from shoal.protocol.codec import pack, unpack
from shoal.protocol.rejected import REASONS
from shoal.server_node.models.clients import Clients, client_statuses
from shoal.server_node.models.sequences import Content
from shoal.server_node.outputs import web
from shoal.server_node.report.privacy import privacy_text, spent_by_one
from tests.server_node.web_statuses import FEATURES, a_contract


def test_a_formal_guarantee_shows_its_epsilon_and_what_is_not_covered() -> None:
    panel = privacy_text(resolve(a_contract(5, {"mode": "formal", "epsilon_per_reading": 4.0})))
    assert (panel["title"], panel["tone"]) == (
        "Formal guarantee for every reading",
        "good",
    )
    assert panel["formal"]
    assert not panel["nominal"]
    assert math.isclose(panel["epsilon"], 4.0)
    assert [part["epsilon"] for part in panel["epsilon_per_feature"]] == pytest.approx([0.8] * 5)
    learnt = dict(panel["guarantee"])["what an attacker learns"]
    assert "at most e^4 = 54.6 times likelier" in learnt
    assert "at most 98 % sure afterwards" in learnt
    assert any("add up" in sentence for sentence in panel["not_covered"])


def test_shares_divide_the_budget() -> None:
    features = [FEATURES[0], {**FEATURES[1], "share": 3.0}]
    contract = parse_contract(
        {
            "federation": {"name": "greenhouse"},
            "features": features,
            "privacy": {"mode": "formal", "epsilon_per_reading": 2.0},
            "models": [{"name": "fcac", "algorithm": "fcac"}],
        }
    )
    assert [
        part["epsilon"] for part in privacy_text(resolve(contract))["epsilon_per_feature"]
    ] == pytest.approx([0.5, 1.5])


@pytest.mark.parametrize(
    ("epsilon", "times"),
    [(0.5, "e^0.5 = 1.65 times"), (8.0, "e^8 = 2,981 times"), (400.0, "10¹⁷⁴ times")],
)
def test_a_factor_too_large_for_digits_is_given_as_a_power_of_ten(
    epsilon: float, times: str
) -> None:
    panel = privacy_text(resolve(a_contract(2, {"mode": "formal", "epsilon_per_reading": epsilon})))
    assert f"at most {times} likelier" in dict(panel["guarantee"])["what an attacker learns"]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, EPSILON_WEAK, EPSILON_WEAK + 0.1, 400.0])
def test_the_panel_is_good_only_with_a_budget_that_protects(epsilon: float) -> None:
    panel = privacy_text(resolve(a_contract(2, {"mode": "formal", "epsilon_per_reading": epsilon})))
    assert (panel["tone"] == "warn") == (epsilon > EPSILON_WEAK)
    assert panel["title"] == "Formal guarantee for every reading"
    assert beliefs(epsilon) in dict(panel["guarantee"])["what an attacker learns"]


@pytest.mark.parametrize(
    ("interval_s", "tone", "words"),
    [(100.0, "warn", "epsilon 17,300 a day"), (1e7, "good", "epsilon 0.173 a day")],
)
def test_the_panel_says_what_a_device_spends_in_a_day_and_chooses_its_tone_by_that(
    interval_s: float, tone: str, words: str
) -> None:
    contract = resolve(a_contract(2, {"mode": "formal", "epsilon_per_reading": 1.0}))
    clients = Clients()
    for number in range(4):
        clients.take("attic", number + 1, 20, 1e9, Content(made_at=1e9 + number * interval_s))
    clients.take("cellar", 1, 1, 1e9, Content(made_at=1e9))
    spent = spent_by_one(contract, client_statuses([clients], 1e9), {"attic": "Dachboden"})
    assert spent is not None
    panel = privacy_text(contract, spent)
    assert (panel["tone"], panel["day"]) == (tone, float(f"{spent.epsilon:.3g}"))
    assert words in panel["sentences"][-1]
    assert "a device of Dachboden " in panel["sentences"][-1]
    assert panel["sentences"][-1].endswith(beliefs(spent.epsilon))
    assert spent_by_one(contract, client_statuses([Clients()], 1e9), {}) is None


def test_readings_that_are_fed_long_after_they_were_taken_count_by_their_own_times() -> None:
    contract = resolve(a_contract(2, {"mode": "formal", "epsilon_per_reading": 1.0}))
    counted = Clients()
    rows = Clients()
    for number in range(4):  # a hundred readings a day, of which two days are fed in each second
        made_at = 1e9 + number
        first = 5e8 + 172_800 * number
        counted.take(
            "attic", number + 1, 200, 1e9, Content(b"", made_at, None, 0, made_at - 1, made_at)
        )
        rows.take(
            "attic", number + 1, 200, 1e9, Content(b"", made_at, None, 0, first, first + 172_800)
        )
    for models in ([counted, rows], [rows, counted]):
        spent = spent_by_one(contract, client_statuses(models, 1e9), {})
        assert spent is not None
        assert spent.epsilon == pytest.approx(100.0)
    answers = Clients()  # of a model in rounds, for the same rows again and again
    for number in range(4):
        answers.take(
            "attic",
            number + 1,
            800,
            1e9,
            Content(b"", 1e9 + number / 10, None, 0, 5e8, 5e8 + 691_200),
        )
    (status,) = client_statuses([counted, answers, rows], 1e9)
    assert status.readings == 3200
    assert status.daily is not None
    assert status.daily.readings == pytest.approx(100.0)
    restarted = Clients()
    restarted.restore(unpack(pack(rows.state())))
    assert restarted.daily_rate("attic") == rows.daily_rate("attic"), "a restart forgets no times"
    replayed = Clients()
    for number in range(9):
        replayed.take(
            "attic", number + 1, 400, 1e9, Content(b"", 1e9 + number / 4, None, 0, 1e9, 1e9 + 1)
        )
    assert replayed.daily_rate("attic") is None, "seconds of a replay say nothing of a day"
    rows.forget("attic")
    assert rows.daily_rate("attic") is None


def test_a_user_spends_in_a_day_what_its_windows_cost() -> None:
    terms = {"mode": "formal", "counts_epsilon": 0.5, "unit": "user", "readings_per_window_max": 2}
    contract = resolve(
        parse_contract(
            {
                "federation": {"name": "greenhouse"},
                "features": FEATURES[:2],
                "privacy": terms,
                "models": [{"name": "clusters", "algorithm": "density_tree"}],
            }
        )
    )
    for readings, windows, epsilon in (
        (1440, None, 72.0),
        (3, None, 1.5),
        (1440, 20, 10.0),
        (400_000, None, 500.0),
    ):
        spent = spent_in_a_day(contract, readings, windows)
        assert spent is not None
        assert spent.epsilon == epsilon


def test_the_noise_of_the_paper_guarantees_nothing() -> None:
    panel = privacy_text(
        resolve(a_contract(2, {"mode": "paper", "epsilon_nominal_per_feature": 15.0}))
    )
    assert (panel["title"], panel["tone"]) == ("Noise without a formal guarantee", "warn")
    assert panel["nominal"]
    assert not panel["formal"]
    assert panel["epsilon"] == 30.0
    assert "NO FORMAL GUARANTEE" in panel["sentences"][1]


def test_private_counts_show_what_each_model_costs_and_the_sum() -> None:
    contract = parse_contract(
        {
            "federation": {"name": "greenhouse"},
            "features": FEATURES[:2],
            "privacy": {"mode": "formal", "counts_epsilon": 4.0},
            "models": [
                {"name": "clusters", "algorithm": "density_tree"},
                {"name": "careful", "algorithm": "density_tree", "counts_epsilon": 1.0},
            ],
        }
    )
    panel = privacy_text(resolve(contract))
    assert panel["epsilon"] == 5.0
    assert [
        (model["name"], model["learns_from"], model["epsilon"]) for model in panel["models"]
    ] == [
        ("clusters", "counts", 4.0),
        ("careful", "counts", 1.0),
    ]
    assert "of the tree of cuts" in panel["models"][0]["counted"]


def test_without_privacy_the_page_shows_no_epsilon() -> None:
    panel = privacy_text(resolve(a_contract(2, {"mode": "off"})))
    assert (panel["title"], panel["tone"]) == ("No privacy", "bad")
    assert panel["epsilon"] is None
    assert panel["epsilon_per_feature"] == []
    assert panel["not_covered"] == ["Everything: nothing is hidden in this mode."]


def test_the_page_has_words_for_every_reason_for_rejection() -> None:
    script = (Path(web.__file__).parent / "static" / "details.js").read_text(encoding="utf-8")
    words = re.search(r"const REASONS = \{\n(.*?)\n\};", script, re.DOTALL)
    assert words
    assert set(re.findall(r"^  (\w+): \"", words[1], re.MULTILINE)) == set(REASONS)
