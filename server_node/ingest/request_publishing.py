"""Publishes requests of operators to the topic of updates: each is made, checked and signed here.

Commands and the page use it. A running server reads a request at once, one that is started later
reads it then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

from shoal.config.base import check_client_name
from shoal.config.resolved import ResolvedContract
from shoal.config.settings import Config
from shoal.errors import LogError, MessageRejected, SettingsError
from shoal.protocol.messages import ClusterAlerts, ClusterName, OperatorRequest, Wake
from shoal.protocol.quarantine import LIST_KEY, QuarantinedClient, QuarantineList
from shoal.protocol.validation import SUMS_ALONE, Validator
from shoal.runtime.checkpoint import OutboxRecord
from shoal.server_node.ingest.requests import quarantine_records, request_signer
from shoal.transports import open_log
from shoal.transports.base import Headers, Log, beginning, latest

Sign = Callable[[OutboxRecord], Headers]
"""gives the headers to add to the record of a request"""


def publish_requests(
    config: Config, log: Log, requests: Iterable[OperatorRequest], sign: Sign | None = None
) -> None:
    """Publish requests, signed where requests are; the log has the topics.

    `sign` None: with the operator's key. Raises `SettingsError` for a key that cannot be read, and
    as the log does.
    """
    contract = config.contract
    sign = sign or request_signer(config.server)
    for request in requests:
        key = contract.update_key(request.model)
        topic = contract.updates_topic
        record = OutboxRecord(topic, request.encode(), key, request.headers())
        log.publish(topic, record.value, key, record.headers + sign(record))
    log.flush()


def request_publisher(config: Config) -> Callable[[OperatorRequest], None]:
    """A function that publishes requests from any thread: each through a log of its own, opened for
    that request.

    They are signed with the key that the server has now: it does not know one made while it runs.
    Raises `SettingsError` for a key that cannot be read.
    """
    sign = request_signer(config.server, as_server=True)

    def publish(request: OperatorRequest) -> None:
        with closing(open_log(config.log)) as log:
            publish_requests(config, log, [request], sign)

    return publish


def request_wake(config: Config, log: Log, names: Sequence[str]) -> None:
    """Publish a wake request for each of these models; the log has the topics.

    Raises `SettingsError` for a model that has no rounds.
    """
    resolved = config.resolved
    in_rounds = [model.name for model in resolved.in_rounds]
    for name in names:
        if name not in in_rounds:
            known = ", ".join(in_rounds) or "none"
            raise SettingsError(
                f"no model {name!r} in rounds in this federation; in rounds: {known}"
            )
    validator = Validator(resolved)
    requests: list[Wake] = []
    for name in names:
        request = Wake(resolved.federation, resolved.digest, name, made_at=time.time())
        validator.check_wake(request)
        requests.append(request)
    publish_requests(config, log, requests)


def request_name(config: Config, log: Log, model: str, cluster: int, name: str) -> None:
    """Publish a request to name a cluster; the log has the topics.

    Raises `SettingsError` for a wrong model or name.
    """
    publish_requests(config, log, [name_request(config.resolved, model, cluster, name)])


def name_request(contract: ResolvedContract, model: str, cluster: int, name: str) -> ClusterName:
    """The checked request to name a cluster. Raises `SettingsError` for a wrong model or name."""
    try:
        request = ClusterName(
            contract.federation, contract.digest, model, cluster, name.strip(), made_at=time.time()
        )
        # Checked here as the server will check it, or an operator would learn of a slip only from
        # the list of rejected messages.
        Validator(contract).check_request(request)
    except MessageRejected as rejected:
        raise SettingsError(
            f"cluster {cluster} of {model!r} cannot be named {name!r}: {rejected.detail}"
        ) from None
    return request


def alerts_request(
    contract: ResolvedContract, model: str, cluster: int, action: str, until: float
) -> ClusterAlerts:
    """The checked request about the alerts of a cluster.

    Raises `SettingsError` for a wrong model, action or time.
    """
    try:
        request = ClusterAlerts(
            contract.federation, contract.digest, model, cluster, action, until, made_at=time.time()
        )
        Validator(contract).check_request(request)
    except MessageRejected as rejected:
        raise SettingsError(
            f"cluster {cluster} of {model!r}: {action!r} cannot be asked: {rejected.detail}"
        ) from None
    return request


def request_quarantine(config: Config, log: Log, client: str, action: str, detail: str) -> None:
    """Publish a request about a client for every model; the log has the topics.

    Raises `SettingsError` for a name or a reason that cannot be, or where counts are masked, and as
    the log does.
    """
    check_client_name(client)
    _check_known_apart(config.resolved)
    try:
        records = quarantine_records(config.contract, client, action, detail, time.time())
    except MessageRejected:
        raise SettingsError(
            f"--reason {detail!r}: must be one line of at most 300 printable characters"
        ) from None
    sign = request_signer(config.server)
    for record in records:
        log.publish(record.topic, record.value, record.key, record.headers + sign(record))
    log.flush()


def check_log_reaches_back(resolved: ResolvedContract, log: Log, client: str) -> None:
    """Raises `LogError` if a model cannot be rebuilt because its first updates are no longer in the
    log.

    Raises `SettingsError` where counts are masked.
    """
    _check_known_apart(resolved)
    streaming = [name for name, model in resolved.models.items() if not model.family.in_rounds]
    first = beginning(log, resolved.contract.updates_topic)
    if streaming and any(first.values()):
        raise LogError(
            f"{client} cannot be unlearned: the log no longer begins at its first update, so "
            f"{', '.join(streaming)} cannot be rebuilt from it. Quarantine the client (`shoal "
            "quarantine`) and let its part fade, restore a backup of the log that reaches back, or "
            "start the federation again under a new name; a greater [log] updates_retention_s "
            "keeps more"
        )


def quarantined_clients(config: Config, log: Log) -> list[QuarantinedClient]:
    """The clients in quarantine, as the server has published them last."""
    record = latest(log, config.contract.snapshots_topic).get(LIST_KEY)
    if record is None:
        return []
    return QuarantineList.decode(record.value, record.headers).clients


def _check_known_apart(resolved: ResolvedContract) -> None:
    """Raises `SettingsError` where counts are masked, so that only sums of clients are known.

    Regions are clients of their upstream federation, whose sums are known one by one.
    """
    if resolved.mode.masked and not resolved.mode.regions:
        raise SettingsError(SUMS_ALONE)
