"""The Grafana dashboards that show whether everything runs, and the command that writes them as
JSON for Grafana.

    python -m deploy.grafana.dashboards        writes deploy/grafana/dashboards/*.json

Needs grafana-foundation-sdk (in the extra `dev`). The JSON is committed, so running Grafana needs
no Python.
"""

from __future__ import annotations

from pathlib import Path

from deploy.grafana.clusters import CLUSTERS
from deploy.grafana.panels import (
    BYTES,
    NUMBER,
    PER_SECOND,
    SECONDS,
    SHARE,
    Dashboard,
    Query,
    Variable,
    quantiles,
    stat_panel,
    time_series_panel,
    to_json,
)

CLIENT = Variable(
    "client", "Client", 'label_values(up{job="shoal-client"}, client)', multiple=False
)

ONE_CLIENT = Dashboard(
    "shoal-client",
    "shoal operations: Client",
    "One client, by its own metrics and by the updates that the server reads.",
    [CLIENT],
    [
        stat_panel(
            "Readings per second",
            PER_SECOND,
            "Learned.",
            Query(
                'sum(rate(shoal_readings_total{client="$client",'
                ' result="learned"}[$__rate_interval]))',
                "learned",
            ),
        ),
        stat_panel(
            "Privacy",
            NUMBER,
            "The privacy mode, its unit and its mechanism; the value is 1.",
            Query(
                'shoal_privacy_guarantee_info{client="$client"}',
                "{{mode}}, each {{unit}}, {{mechanism}}",
            ),
        ),
        stat_panel(
            "Epsilon per reading",
            NUMBER,
            "Spent by the noise tables in use, and allowed by the contract.",
            Query('shoal_privacy_epsilon_spent{client="$client"}', "spent"),
            Query('shoal_privacy_epsilon_limit{client="$client"}', "limit"),
        ),
        stat_panel(
            "Time since last update",
            SECONDS,
            "As the server has seen it.",
            Query('time() - shoal_client_last_seen_timestamp_seconds{client="$client"}', "since"),
        ),
        time_series_panel(
            "Readings",
            PER_SECOND,
            "By result. Clipped ones are learned too; repeated ones were learned again after an"
            " error.",
            Query(
                'sum by (result) (rate(shoal_readings_total{client="$client"}[$__rate_interval]))',
                "{{result}}",
            ),
        ),
        time_series_panel(
            "Updates",
            PER_SECOND,
            "Published.",
            Query(
                'sum(rate(shoal_updates_total{client="$client"}[$__rate_interval]))', "published"
            ),
        ),
        time_series_panel(
            "Missing values",
            SHARE,
            "Share of the readings that are learnt without a value of a feature, with missing ="
            ' "learn".',
            Query(
                "sum by (feature)"
                ' (rate(shoal_values_missing_total{client="$client"}[$__rate_interval])) / on ()'
                ' group_left () sum(rate(shoal_readings_total{client="$client",'
                ' result="read"}[$__rate_interval]))',
                "{{feature}}",
            ),
        ),
        time_series_panel(
            "Rejected values",
            PER_SECOND,
            "Readings that are not learnt, by reason and by the feature that has the fault.",
            Query(
                "sum by (reason, feature)"
                ' (rate(shoal_readings_rejected_total{client="$client"}[$__rate_interval]))',
                "{{reason}} {{feature}}",
            ),
        ),
        time_series_panel(
            "Nodes", NUMBER, "Of its models.", Query('shoal_nodes{client="$client"}', "{{model}}")
        ),
        time_series_panel(
            "Lag",
            NUMBER,
            "Readings not learned yet.",
            Query('shoal_consumer_lag_records{client="$client"}', "{{topic}}"),
        ),
        time_series_panel(
            "Learn time",
            SECONDS,
            "To add noise to one batch and learn it.",
            *quantiles("shoal_learn_duration_seconds", selector='{client="$client"}'),
        ),
        time_series_panel(
            "Event time",
            SECONDS,
            "Age of the newest reading that was learned.",
            Query('shoal_event_time_lag_seconds{client="$client"}', "age"),
        ),
        time_series_panel(
            "Checkpoint age",
            SECONDS,
            "It also grows while there is nothing to do.",
            Query('time() - (shoal_checkpoint_timestamp_seconds{client="$client"} > 0)', "age"),
        ),
        time_series_panel(
            "Memory",
            BYTES,
            "Resident.",
            Query('process_resident_memory_bytes{client="$client"}', "resident"),
        ),
    ],
)


FOLDER = Path(__file__).parent / "dashboards"

MODEL = Variable("model", "Model", "label_values(shoal_clusters, model)")
IN_ROUNDS = Variable("in_rounds", "Model in rounds", "label_values(shoal_round_number, model)")
INSTANCE = Variable("instance", "Process", 'label_values(up{job=~"shoal-.+"}, instance)')

ACTIVE = "sum(time() - shoal_client_last_seen_timestamp_seconds < bool 60)"
LEARNED = 'sum(rate(shoal_readings_total{job="shoal-server", result="learned"}[$__rate_interval]))'

FEDERATION = Dashboard(
    "shoal-federation",
    "shoal operations: Federation",
    "The clusters of the federation, and its clients.",
    [MODEL, IN_ROUNDS],
    [
        stat_panel(
            "Clusters",
            NUMBER,
            "Known clusters of each model, and those of them to which readings fall at present.",
            Query('shoal_clusters{model=~"$model"}', "{{model}} known"),
            Query('shoal_clusters_active{model=~"$model"}', "{{model}} active"),
        ),
        stat_panel(
            "Active clients",
            NUMBER,
            "Seen by the server within the last minute.",
            Query(ACTIVE, "active"),
        ),
        stat_panel(
            "Readings per second",
            PER_SECOND,
            "Behind the updates absorbed.",
            Query(LEARNED, "readings"),
        ),
        stat_panel(
            "Snapshot",
            NUMBER,
            "Its version.",
            Query('shoal_snapshot_version{model=~"$model"}', "{{model}}"),
        ),
        stat_panel(
            "Epsilon per reading",
            NUMBER,
            "The most that any client spends on a reading. Noise is added to a reading once, so it"
            " does not grow.",
            Query("max(shoal_privacy_epsilon_spent)", "epsilon"),
        ),
        time_series_panel(
            "Clusters",
            NUMBER,
            "Known clusters of each model, and those of them to which readings fall at present.",
            Query('shoal_clusters{model=~"$model"}', "{{model}} known"),
            Query('shoal_clusters_active{model=~"$model"}', "{{model}} active"),
        ),
        time_series_panel(
            "Cluster events",
            NUMBER,
            "birth and parted add a known cluster, merged and gone remove one; an active one may"
            " turn quiet.",
            Query(
                "sum by (model, event)"
                ' (increase(shoal_cluster_events_total{model=~"$model"}[$__rate_interval]))',
                "{{model}} {{event}}",
            ),
        ),
        time_series_panel(
            "Share of each cluster",
            SHARE,
            "Of the recent readings of its model, by name; a cluster without a name by its"
            " identity.",
            Query('shoal_cluster_recent_share{model=~"$model", name!=""}', "{{model}} {{name}}"),
            Query('shoal_cluster_recent_share{model=~"$model", name=""}', "{{model}} {{cluster}}"),
        ),
        time_series_panel(
            "Clusters as the algorithm counts them",
            NUMBER,
            "In the newest snapshot, before they are confirmed; for FCAC single nodes are among"
            " them.",
            Query('shoal_clusters_published{model=~"$model"}', "{{model}}"),
        ),
        time_series_panel(
            "Nodes",
            NUMBER,
            "Of the server's models.",
            Query('shoal_nodes{job="shoal-server", model=~"$model"}', "{{model}}"),
        ),
        time_series_panel(
            "Edges", NUMBER, "Between nodes.", Query('shoal_edges{model=~"$model"}', "{{model}}")
        ),
        time_series_panel(
            "Readings per second",
            PER_SECOND,
            "Learned by each client, and behind the updates that the server absorbed.",
            Query(
                'sum by (client) (rate(shoal_readings_total{job="shoal-client",'
                ' result="learned"}[$__rate_interval]))',
                "{{client}}",
            ),
            Query(LEARNED, "server"),
        ),
        time_series_panel(
            "Clients",
            NUMBER,
            "Seen within the last minute, and all that were ever seen.",
            Query(ACTIVE, "active"),
            Query("count(shoal_client_last_seen_timestamp_seconds)", "known"),
        ),
        time_series_panel(
            "Snapshot version",
            NUMBER,
            "It rises with every snapshot.",
            Query('shoal_snapshot_version{model=~"$model"}', "{{model}}"),
        ),
        time_series_panel(
            "Epsilon per reading",
            NUMBER,
            "Spent by the noise tables in use, and allowed by the contract; infinite without a"
            " guarantee.",
            Query("shoal_privacy_epsilon_spent", "{{client}} spent"),
            Query("shoal_privacy_epsilon_limit", "{{client}} limit"),
        ),
        time_series_panel(
            "Rounds",
            NUMBER,
            "The newest that has closed, and the answers that counted in it.",
            Query('shoal_round_number{model=~"$in_rounds"}', "{{model}} round"),
            Query('shoal_round_counted_answers{model=~"$in_rounds"}', "{{model}} answers"),
        ),
        time_series_panel(
            "Shift",
            NUMBER,
            "How far the newest round moved the model, in its own measure.",
            Query('shoal_round_shift{model=~"$in_rounds"}', "{{model}}"),
        ),
    ],
)

OPERATIONS = Dashboard(
    "shoal-operations",
    "shoal operations: Processes",
    "Lag, latency, errors and resources of all processes.",
    [INSTANCE],
    [
        stat_panel(
            "Up",
            NUMBER,
            "1 while the process responds.",
            Query('up{instance=~"$instance"}', "{{instance}}"),
        ),
        stat_panel(
            "Records behind",
            NUMBER,
            "Not read yet.",
            Query(
                'sum by (instance) (shoal_consumer_lag_records{instance=~"$instance"})',
                "{{instance}}",
            ),
        ),
        stat_panel(
            "Rejected messages",
            NUMBER,
            "In the last hour.",
            Query(
                'sum(increase(shoal_updates_total{job="shoal-server", result="rejected"}[1h]))',
                "rejected",
            ),
        ),
        time_series_panel(
            "Lag",
            NUMBER,
            "Records not read yet: readings at a client, updates at the server.",
            Query('shoal_consumer_lag_records{instance=~"$instance"}', "{{instance}} {{topic}}"),
        ),
        time_series_panel(
            "Latency",
            SECONDS,
            "From the creation of an update to the snapshot that contains it.",
            *quantiles("shoal_end_to_end_latency_seconds"),
        ),
        time_series_panel(
            "Learn time",
            SECONDS,
            "Of one batch: of readings on a client, of updates on the server.",
            *quantiles(
                "shoal_learn_duration_seconds",
                "instance",
                '{instance=~"$instance"}',
                shares=[0.5, 0.95],
            ),
        ),
        time_series_panel(
            "Round duration",
            SECONDS,
            "From a round request to the end of its round.",
            *quantiles("shoal_round_duration_seconds", "algorithm", shares=[0.5, 0.95]),
        ),
        time_series_panel(
            "Rounds of masked counts",
            NUMBER,
            "By result, and the helpers whose sums they wait for or that are wrong. All 0 in other"
            " modes.",
            Query(
                "sum by (result) (increase(shoal_masked_rounds_total[$__rate_interval]))",
                "{{result}}",
            ),
            Query("sum(shoal_helpers_awaited)", "helpers awaited"),
            Query("sum(shoal_helpers_wrong)", "helpers wrong"),
        ),
        time_series_panel(
            "Updates",
            PER_SECOND,
            "By result. Repeated ones were published again after a restart, and dropped.",
            Query(
                'sum by (result) (rate(shoal_updates_total{job="shoal-server"}[$__rate_interval]))',
                "{{result}}",
            ),
        ),
        time_series_panel(
            "Rejected messages",
            NUMBER,
            "By reason; shoal rejected lists them.",
            Query(
                "sum by (reason) (increase(shoal_rejected_messages_total[$__rate_interval]))",
                "{{reason}}",
            ),
        ),
        time_series_panel(
            "Rejected readings",
            PER_SECOND,
            "Of a wrong width, not numbers, or not finite. They are kept on their client.",
            Query(
                'sum by (client) (rate(shoal_readings_total{job="shoal-client",'
                ' result="rejected"}[$__rate_interval]))',
                "{{client}}",
            ),
        ),
        time_series_panel(
            "Time since last update",
            SECONDS,
            "Of each client, as the server has seen it.",
            Query("time() - shoal_client_last_seen_timestamp_seconds", "{{client}}"),
        ),
        time_series_panel(
            "Checkpoint age",
            SECONDS,
            "It also grows while there is nothing to do.",
            Query(
                'time() - (shoal_checkpoint_timestamp_seconds{instance=~"$instance"} > 0)',
                "{{instance}}",
            ),
        ),
        time_series_panel(
            "Memory",
            BYTES,
            "Resident.",
            Query('process_resident_memory_bytes{instance=~"$instance"}', "{{instance}}"),
        ),
        time_series_panel(
            "CPU",
            SHARE,
            "Of one core.",
            Query(
                'rate(process_cpu_seconds_total{instance=~"$instance"}[$__rate_interval])',
                "{{instance}}",
            ),
        ),
    ],
)

DASHBOARDS = {
    "clusters": CLUSTERS,
    "federation": FEDERATION,
    "operations": OPERATIONS,
    "client": ONE_CLIENT,
}
"""name of the file -> dashboard"""


def main() -> None:
    """Write all dashboards."""
    for name, dashboard in DASHBOARDS.items():
        (FOLDER / f"{name}.json").write_text(to_json(dashboard), encoding="utf-8")


if __name__ == "__main__":
    main()
