"""The Grafana dashboard of one client: by its own metrics, and by the updates that the server reads."""

from __future__ import annotations

from deploy.grafana.panels import (
    BYTES,
    NUMBER,
    PER_SECOND,
    SECONDS,
    Dashboard,
    Query,
    Variable,
    quantiles,
    stat_panel,
    time_series_panel,
)

CLIENT = Variable("client", "Client", 'label_values(up{job="shoal-client"}, client)', multiple=False)

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
            Query('sum(rate(shoal_readings_total{client="$client", result="learned"}[$__rate_interval]))', "learned"),
        ),
        stat_panel(
            "Privacy",
            NUMBER,
            "The privacy mode, its unit and its mechanism; the value is 1.",
            Query('shoal_privacy_guarantee_info{client="$client"}', "{{mode}}, each {{unit}}, {{mechanism}}"),
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
            "By result. Clipped ones are learned too; repeated ones were learned again after an error.",
            Query(
                'sum by (result) (rate(shoal_readings_total{client="$client"}[$__rate_interval]))',
                "{{result}}",
            ),
        ),
        time_series_panel(
            "Updates",
            PER_SECOND,
            "Published.",
            Query('sum(rate(shoal_updates_total{client="$client"}[$__rate_interval]))', "published"),
        ),
        time_series_panel("Nodes", NUMBER, "Of its models.", Query('shoal_nodes{client="$client"}', "{{model}}")),
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
            "Memory", BYTES, "Resident.", Query('process_resident_memory_bytes{client="$client"}', "resident")
        ),
    ],
)
