"""The dashboard for people who run a plant: which clusters there are now, what changed, and whether
all is well."""

from __future__ import annotations

from deploy.grafana.panels import (
    MOMENT,
    NUMBER,
    SHARE,
    Annotation,
    Dashboard,
    Query,
    Variable,
    list_panel,
    matrix_panel,
    stacked_panel,
    stat_panel,
    time_series_panel,
)

MODEL = Variable("model", "Model", "label_values(shoal_clusters, model)", multiple=False)

INACTIVE_S = 300
"""seconds without an update after which a client is inactive, as by the alert ShoalClientInactive
"""
INACTIVE_FOR = "(time() - shoal_client_last_seen_timestamp_seconds)"
LATE = f"({INACTIVE_FOR} > {INACTIVE_S})"
FIRING = 'ALERTS{alertstate="firing"}'
EVENTS = 'max by (event, text) (shoal_cluster_event_timestamp_seconds{model="$model"}) * 1000'


def titled(expr: str) -> str:
    """The series of clusters with a label `title`: their name, or "cluster" and their identity if
    they have none."""
    numbered = f'label_replace({expr}, "title", "cluster $1", "cluster", "(.+)")'
    return f'label_replace({numbered}, "title", "$1", "name", "(.+)")'


def in_units(expr: str) -> str:
    """The series of features with a label `column`: the feature and its unit, if it has one."""
    joined = f'label_join({expr}, "column", " in ", "feature", "unit")'
    return f'label_replace({joined}, "column", "$1", "column", "(.+) in ")'


def or_none(expr: str, label: str, text: str, value: str = "0") -> str:
    """The series of a query, or while there are none one of this value that says so in words."""
    return f'{expr} or label_replace({value} * absent({expr}), "{label}", "{text}", "", "")'


CENTRE = 'shoal_cluster_centre{model="$model"}'
CENTRES = f"max by (title, column) ({in_units(titled(CENTRE))})"
TOGETHER = 'label_replace(max(shoal_models_epsilon), "model", "all together", "", "")'
EPSILONS = f"max by (model, unit) (shoal_model_epsilon) or {TOGETHER}"

CLUSTERS = Dashboard(
    "shoal-clusters",
    "shoal: Clusters",
    "Which clusters there are now, what changed, whether readings are new, complete and private.",
    [MODEL],
    [
        time_series_panel(
            "Clusters over time",
            NUMBER,
            "To which readings fell at that time, and all that were known.",
            Query('shoal_clusters_active{model="$model"}', "now"),
            Query('shoal_clusters{model="$model"}', "known"),
        ),
        stat_panel(
            "Clusters",
            NUMBER,
            "To which readings fall now, and all that are known.",
            Query('shoal_clusters_active{model="$model"}', "now"),
            Query('shoal_clusters{model="$model"}', "known"),
        ),
        stat_panel(
            "New readings",
            SHARE,
            "Share of the readings of the last hour that fell to no known cluster.",
            Query('avg_over_time(shoal_unknown_share{model="$model"}[1h])', "new"),
        ),
        stat_panel(
            "Unusual",
            NUMBER,
            "Whether the shares of the clusters are unusual for the time of day: 1 or 0.",
            Query('max(shoal_unusual{model="$model"})', "now"),
        ),
        stat_panel(
            "Clients",
            NUMBER,
            "That send, and that have sent nothing for five minutes.",
            Query(f"sum({INACTIVE_FOR} <= bool {INACTIVE_S})", "send"),
            Query(f"sum({INACTIVE_FOR} > bool {INACTIVE_S})", "inactive"),
        ),
        stat_panel(
            "Alerts",
            NUMBER,
            "That fire now; below they are listed.",
            Query(f"count({FIRING}) or vector(0)", ""),
        ),
        stat_panel(
            "Epsilon",
            NUMBER,
            "What this model costs each reading (or unit, see below), and all models together."
            " Smaller protects more.",
            Query('shoal_model_epsilon{model="$model"}', "this model"),
            Query("shoal_models_epsilon", "all models"),
        ),
        stacked_panel(
            "Share of each cluster",
            SHARE,
            "Of the recent readings, by name. Marks are births and ends of clusters.",
            Query(titled('shoal_cluster_recent_share{model="$model"}'), "{{title}}"),
        ),
        matrix_panel(
            "Where the clusters lie",
            NUMBER,
            "The centre of each known cluster, in units.",
            CENTRES,
            ("title", "cluster"),
            "column",
        ),
        list_panel(
            "What happened",
            MOMENT,
            "The newest births and ends of clusters.",
            or_none(EVENTS, "text", "nothing yet", "1000 * time()"),
            {"Value": "when", "event": "event", "text": "what"},
            "when",
        ),
        time_series_panel(
            "New readings over time",
            SHARE,
            "Share of the readings of the newest five minutes that fell to no known cluster.",
            Query('shoal_unknown_share{model="$model"}', "new"),
        ),
        list_panel(
            "Dwells in states",
            NUMBER,
            "Readings of a client that each state lasts at a stretch, of a model whose clusters"
            " are states.",
            or_none(
                'sum by (cluster, name) (shoal_state_dwell_readings{model="$model"})',
                "name",
                "none: places",
            ),
            {"cluster": "state", "name": "name", "Value": "readings"},
            "readings",
        ),
        list_panel(
            "Inactive clients",
            "s",
            "Clients that have sent nothing for five minutes, and for how long.",
            or_none(f"sum by (client) ({LATE})", "client", "none: all send"),
            {"client": "client", "Value": "inactive for"},
            "inactive for",
        ),
        list_panel(
            "Alerts that fire",
            NUMBER,
            "What to do about each is in docs/how-to/alerts.md.",
            or_none(
                f"count by (alertname, severity, client, model) ({FIRING})", "alertname", "none"
            ),
            {
                "alertname": "alert",
                "severity": "severity",
                "model": "model",
                "client": "client",
                "Value": "times",
            },
        ),
        list_panel(
            "Privacy",
            NUMBER,
            "The epsilon of each model, of what it is, and of all together: models that share noise"
            " count once.",
            EPSILONS,
            {"model": "model", "Value": "epsilon", "unit": "of each"},
        ),
    ],
    [
        Annotation("Births and ends of clusters", EVENTS, "{{event}}", "{{text}}", "orange"),
    ],
    tags=("shoal",),
    span="24h",
    refresh="30s",
)
