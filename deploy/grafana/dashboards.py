"""The Grafana dashboards: what is shown, once, and from it the JSON beside this file that Grafana is given.

    python -m deploy.grafana.dashboards        writes deploy/grafana/dashboards/*.json

Needs grafana-foundation-sdk (in the extra `dev`). The JSON is committed: whoever only runs Grafana needs nothing.
"""

from __future__ import annotations

from pathlib import Path

from deploy.grafana.panels import (
    BYTES,
    NUMBER,
    PER_SECOND,
    SECONDS,
    SHARE,
    Board,
    Query,
    Variable,
    curves,
    numbers,
    quantiles,
    written,
)

HERE = Path(__file__).parent / "dashboards"

MODEL = Variable("model", "Model", "label_values(shoal_clusters, model)")
IN_ROUNDS = Variable("in_rounds", "Model in rounds", "label_values(shoal_round, model)")
INSTANCE = Variable("instance", "Process", 'label_values(up{job=~"shoal-.+"}, instance)')
CLIENT = Variable("client", "Client", 'label_values(up{job="shoal-client"}, client)', several=False)

ALIVE = "sum(time() - shoal_client_last_seen_timestamp_seconds < bool 60)"
LEARNT = 'sum(rate(shoal_readings_total{job="shoal-server", result="learned"}[$__rate_interval]))'

FEDERATION = Board(
    "shoal-federation",
    "shoal: Federation",
    "What the federation has found, and who takes part.",
    [MODEL, IN_ROUNDS],
    [
        numbers("Clusters", NUMBER, "Of each model.", Query('shoal_clusters{model=~"$model"}', "{{model}}")),
        numbers("Clients alive", NUMBER, "Heard by the server within the last minute.", Query(ALIVE, "alive")),
        numbers("Readings per second", PER_SECOND, "Behind the updates absorbed.", Query(LEARNT, "readings")),
        numbers("Snapshot", NUMBER, "Its version.", Query('shoal_snapshot_version{model=~"$model"}', "{{model}}")),
        numbers(
            "Epsilon per reading",
            NUMBER,
            "The most that any client spends on a reading. A reading is noised once, so it does not grow with time.",
            Query("max(shoal_privacy_epsilon_spent)", "epsilon"),
        ),
        curves("Clusters", NUMBER, "Of each model.", Query('shoal_clusters{model=~"$model"}', "{{model}}")),
        curves(
            "What becomes of clusters",
            NUMBER,
            "Births and splits add a cluster, merges and deaths take one.",
            Query(
                'sum by (model, event) (increase(shoal_cluster_events_total{model=~"$model"}[$__rate_interval]))',
                "{{model}} {{event}}",
            ),
        ),
        curves(
            "Nodes",
            NUMBER,
            "Of the server's models.",
            Query('shoal_nodes{job="shoal-server", model=~"$model"}', "{{model}}"),
        ),
        curves("Edges", NUMBER, "Between nodes.", Query('shoal_edges{model=~"$model"}', "{{model}}")),
        curves(
            "Readings per second",
            PER_SECOND,
            "Learnt by each client, and behind the updates that the server absorbed.",
            Query(
                'sum by (client) (rate(shoal_readings_total{job="shoal-client", result="learned"}[$__rate_interval]))',
                "{{client}}",
            ),
            Query(LEARNT, "server"),
        ),
        curves(
            "Clients",
            NUMBER,
            "Heard within the last minute, and all that were ever heard.",
            Query(ALIVE, "alive"),
            Query("count(shoal_client_last_seen_timestamp_seconds)", "known"),
        ),
        curves(
            "Snapshot version",
            NUMBER,
            "It rises with every snapshot.",
            Query('shoal_snapshot_version{model=~"$model"}', "{{model}}"),
        ),
        curves(
            "Epsilon per reading",
            NUMBER,
            "Spent by the noise tables in force, and allowed by the contract; infinite where nothing is guaranteed.",
            Query("shoal_privacy_epsilon_spent", "{{client}} spent"),
            Query("shoal_privacy_epsilon_limit", "{{client}} limit"),
        ),
        curves(
            "Rounds",
            NUMBER,
            "The newest that closed, and the answers counted in it.",
            Query('shoal_round{model=~"$in_rounds"}', "{{model}} round"),
            Query('shoal_round_answers{model=~"$in_rounds"}', "{{model}} answers"),
        ),
        curves(
            "Shift",
            NUMBER,
            "How far the newest round moved the model, in its own measure.",
            Query('shoal_model_shift{model=~"$in_rounds"}', "{{model}}"),
        ),
    ],
)

OPERATIONS = Board(
    "shoal-operations",
    "shoal: Operations",
    "Whether everything keeps up.",
    [INSTANCE],
    [
        numbers("Up", NUMBER, "1 while it answers.", Query('up{instance=~"$instance"}', "{{instance}}")),
        numbers(
            "Records behind",
            NUMBER,
            "Not read yet.",
            Query('sum by (instance) (shoal_consumer_lag_records{instance=~"$instance"})', "{{instance}}"),
        ),
        numbers(
            "Messages set aside",
            NUMBER,
            "In the last hour.",
            Query('sum(increase(shoal_updates_total{job="shoal-server", result="rejected"}[1h]))', "rejected"),
        ),
        curves(
            "Lag",
            NUMBER,
            "Records not read yet: readings at a client, updates at the server.",
            Query('shoal_consumer_lag_records{instance=~"$instance"}', "{{instance}} {{topic}}"),
        ),
        curves(
            "Latency",
            SECONDS,
            "From an update made to the snapshot that holds it.",
            *quantiles("shoal_end_to_end_latency_seconds"),
        ),
        curves(
            "Learn time",
            SECONDS,
            "Of one batch: made private and learnt by a client, absorbed by the server.",
            *quantiles("shoal_learn_duration_seconds", "instance", '{instance=~"$instance"}', shares=[0.5, 0.95]),
        ),
        curves(
            "Round duration",
            SECONDS,
            "From a call to its close.",
            *quantiles("shoal_round_duration_seconds", "algorithm", shares=[0.5, 0.95]),
        ),
        curves(
            "Updates",
            PER_SECOND,
            "By what became of them. Repeated ones were said again after a restart, and dropped.",
            Query('sum by (result) (rate(shoal_updates_total{job="shoal-server"}[$__rate_interval]))', "{{result}}"),
        ),
        curves(
            "Messages set aside",
            NUMBER,
            "By reason: see shoal rejected.",
            Query("sum by (reason) (increase(shoal_rejected_total[$__rate_interval]))", "{{reason}}"),
        ),
        curves(
            "Readings rejected",
            PER_SECOND,
            "Of wrong width, not numbers, or infinite. They stay with their client.",
            Query(
                'sum by (client) (rate(shoal_readings_total{job="shoal-client", result="rejected"}[$__rate_interval]))',
                "{{client}}",
            ),
        ),
        curves(
            "Silence",
            SECONDS,
            "Since the server heard each client.",
            Query("time() - shoal_client_last_seen_timestamp_seconds", "{{client}}"),
        ),
        curves(
            "Checkpoint age",
            SECONDS,
            "It grows while there is nothing to do, too.",
            Query('time() - (shoal_checkpoint_timestamp_seconds{instance=~"$instance"} > 0)', "{{instance}}"),
        ),
        curves(
            "Memory",
            BYTES,
            "Resident.",
            Query('process_resident_memory_bytes{instance=~"$instance"}', "{{instance}}"),
        ),
        curves(
            "Processor",
            SHARE,
            "Of one core.",
            Query('rate(process_cpu_seconds_total{instance=~"$instance"}[$__rate_interval])', "{{instance}}"),
        ),
    ],
)

ONE_CLIENT = Board(
    "shoal-client",
    "shoal: Client",
    "One client, from its own metrics and from what the server hears of it.",
    [CLIENT],
    [
        numbers(
            "Readings per second",
            PER_SECOND,
            "Learnt.",
            Query('sum(rate(shoal_readings_total{client="$client", result="learned"}[$__rate_interval]))', "learned"),
        ),
        numbers(
            "Privacy",
            NUMBER,
            "The mode in force; 1 while it is.",
            Query('shoal_privacy_guarantee_info{client="$client"}', "{{mode}}, each {{unit}}, {{mechanism}}"),
        ),
        numbers(
            "Epsilon per reading",
            NUMBER,
            "Spent by the noise tables in force, and allowed by the contract.",
            Query('shoal_privacy_epsilon_spent{client="$client"}', "spent"),
            Query('shoal_privacy_epsilon_limit{client="$client"}', "limit"),
        ),
        numbers(
            "Silence",
            SECONDS,
            "Since the server heard it.",
            Query('time() - shoal_client_last_seen_timestamp_seconds{client="$client"}', "silent"),
        ),
        curves(
            "Readings",
            PER_SECOND,
            "By what became of them. Clipped ones are learnt too; replayed ones were learnt again after an error.",
            Query(
                'sum by (result) (rate(shoal_readings_total{client="$client"}[$__rate_interval]))',
                "{{result}}",
            ),
        ),
        curves(
            "Updates",
            PER_SECOND,
            "Published.",
            Query('sum(rate(shoal_updates_total{client="$client"}[$__rate_interval]))', "published"),
        ),
        curves("Nodes", NUMBER, "Of its models.", Query('shoal_nodes{client="$client"}', "{{model}}")),
        curves(
            "Lag",
            NUMBER,
            "Readings not learnt yet.",
            Query('shoal_consumer_lag_records{client="$client"}', "{{topic}}"),
        ),
        curves(
            "Learn time",
            SECONDS,
            "To make one batch private and learn it.",
            *quantiles("shoal_learn_duration_seconds", chosen='{client="$client"}'),
        ),
        curves(
            "Event time",
            SECONDS,
            "How far the newest reading learnt lies in the past.",
            Query('shoal_event_time_lag_seconds{client="$client"}', "behind"),
        ),
        curves(
            "Checkpoint age",
            SECONDS,
            "It grows while there is nothing to do, too.",
            Query('time() - (shoal_checkpoint_timestamp_seconds{client="$client"} > 0)', "age"),
        ),
        curves("Memory", BYTES, "Resident.", Query('process_resident_memory_bytes{client="$client"}', "resident")),
    ],
)

BOARDS = {"federation": FEDERATION, "operations": OPERATIONS, "client": ONE_CLIENT}
"""name of the file -> what is in it"""


def main() -> None:
    """Write all dashboards."""
    for name, board in BOARDS.items():
        (HERE / f"{name}.json").write_text(written(board), encoding="utf-8")


if __name__ == "__main__":
    main()
