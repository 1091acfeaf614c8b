"""The contract as the server publishes it, and how a client compares its own with that.

The server writes it beside its snapshots at every start, under a key of its own, so that compaction
keeps it. With it are those that the federation had before, by which the records made under them are
understood.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

from pydantic import ValidationError

from shoal.config.changes import CHANGES_MAX
from shoal.config.contract import Contract
from shoal.config.resolved import ResolvedContract
from shoal.errors import ContractDiffers, MessageRejected, ShoalError
from shoal.protocol.checks import is_name, require
from shoal.protocol.messages import Envelope
from shoal.transports.base import Log, Record, latest

CONTRACT_KEY: Final = b"@contract"
"""the key of the contract in the topic of snapshots; a model cannot have this name"""
SHOWN_MAX: Final = 20
"""most differences that an error names"""
SHOWN_CHARACTERS_MAX: Final = 200
"""most characters of one difference"""
_ABSENT: Final = object()


@dataclass(frozen=True)
class PublishedContract(Envelope):
    """The contract of the federation's server."""

    TYPE: ClassVar[str] = "contract"

    federation: str
    contract: str
    """its digest"""
    terms: str
    """JSON: `federation`, `features`, `privacy` and `models` as in the federation file, with all
    defaults"""
    earlier: list[str] = field(default_factory=list)
    """the same of each contract before, oldest first"""

    def __post_init__(self) -> None:
        require(is_name(self.federation), "malformed", "federation")
        require(isinstance(self.contract, str), "malformed", "contract")
        require(
            isinstance(self.earlier, list) and len(self.earlier) < CHANGES_MAX,
            "malformed",
            "earlier",
        )
        for terms in (self.terms, *self.earlier):
            require(
                isinstance(terms, str) and isinstance(_table_of(terms), dict), "malformed", "terms"
            )

    @classmethod
    def of(cls, contract: ResolvedContract) -> Self:
        """The message about this contract and those before it."""
        earlier = [before.agreed.model_dump_json() for before in contract.earlier.values()]
        return cls(
            contract.federation, contract.digest, contract.contract.model_dump_json(), earlier
        )


def publish_contract(log: Log, contract: ResolvedContract) -> None:
    """Publish the contract of a server that has resumed. Raises as the log does."""
    message = PublishedContract.of(contract)
    log.publish(
        contract.contract.snapshots_topic, message.encode(), CONTRACT_KEY, message.headers()
    )
    log.flush()


def published_contracts(record: Record | None, federation: str) -> list[Contract]:
    """The contracts that a federation has had, oldest first, the present one at the end.

    `record`: the newest of the key `CONTRACT_KEY` in the topic of snapshots, if there is one. None
    of a record of another federation, and of one that cannot be read.
    """
    if record is None:
        return []
    try:
        published = PublishedContract.decode(record.value, record.headers)
        if published.federation != federation:
            return []
        contracts = []
        for terms in (*published.earlier, published.terms):
            contract = Contract.model_validate_json(terms)
            # Without defaults: what is written in a contract may count, such as a table that its
            # algorithm must not have.
            contracts.append(Contract.model_validate_json(contract.agreed_json()))
    except (MessageRejected, ValidationError, ShoalError):
        return []
    return contracts


def with_earlier(contract: ResolvedContract, record: Record | None) -> ResolvedContract:
    """The contract with those before it, as the server has published them.

    `record`: see `published_contracts`. Where another contract is published, that is the newest of
    those before.
    """
    published = published_contracts(record, contract.federation)
    return contract.after([before for before in published if before.digest != contract.digest])


def contract_in(log: Log, contract: ResolvedContract) -> ResolvedContract:
    """The same, by what the log has; it has the topic of snapshots. Raises as the log does."""
    return with_earlier(contract, latest(log, contract.contract.snapshots_topic).get(CONTRACT_KEY))


def check_contract(record: Record | None, contract: Contract) -> bool:
    """Whether the server has published this contract; False where it has published none.

    `record`: the newest of the key `CONTRACT_KEY` in the topic of snapshots, if there is one.
    Raises `ContractDiffers`.
    """
    if record is None:
        return False
    try:
        agreed = PublishedContract.decode(record.value, record.headers)
    # As without a record: one that cannot be read must not stop clients that have learnt already.
    except MessageRejected:
        return False
    if agreed.federation != contract.federation:
        return False
    if agreed.contract == contract.digest:
        return True
    # Both as JSON with all defaults, so that an omitted value and its default are no difference.
    ours = json.loads(contract.model_dump_json())
    theirs = json.loads(agreed.terms)
    lines = [f"  {_printable(line)}" for line in differences(ours, theirs)]
    if len(lines) > SHOWN_MAX:
        lines[SHOWN_MAX:] = [f"  and {len(lines) - SHOWN_MAX} more"]
    raise ContractDiffers(
        "the contract in the federation file differs from that of the server of "
        f"{contract.federation}, which would refuse what is made under it. Take the federation's "
        "file and start again under the same name. They differ in\n" + "\n".join(lines)
    )


def differences(ours: Any, theirs: Any, place: str = "") -> Iterator[str]:
    """Each place in which two contracts, as tables of JSON, differ.

    With the own value, and that of the federation.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in dict.fromkeys([*ours, *theirs]):
            at = f"{place}.{name}" if place else name
            yield from differences(ours.get(name, _ABSENT), theirs.get(name, _ABSENT), at)
    elif _are_named(ours) and _are_named(theirs):
        yield from differences(_by_name(ours), _by_name(theirs), place)
        own = list(_by_name(ours))
        agreed = list(_by_name(theirs))
        if own != agreed and set(own) == set(agreed):
            yield (
                f"{place}: ours in the order {', '.join(own)}; the federation's {', '.join(agreed)}"
            )
    elif not _are_equal(ours, theirs):
        yield f"{place}: ours {_text(ours)}; the federation's {_text(theirs)}"


def _are_equal(ours: Any, theirs: Any) -> bool:
    if ours is _ABSENT or theirs is _ABSENT:
        return False
    # As text: True and 1 are equal to Python, and different in a contract.
    return json.dumps(_plain(ours)) == json.dumps(_plain(theirs))


def _table_of(terms: str) -> Any:
    try:
        # Nested a thousand times, JSON of a few bytes ends the recursion of the parser.
        return json.loads(terms)
    except (ValueError, RecursionError):
        return None


def _are_named(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return all(isinstance(table, dict) and isinstance(table.get("name"), str) for table in value)


def _by_name(tables: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {table["name"]: table for table in tables}


def _plain(value: Any) -> Any:
    """1.0 and 1 are one number in a contract."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _text(value: Any) -> str:
    if value is _ABSENT or value is None:
        return "left out"
    # A whole feature or model: its values would hide that it is the only difference.
    if isinstance(value, dict | list):
        return "there"
    return json.dumps(_plain(value), ensure_ascii=False)


def _printable(line: str) -> str:
    """A line from a message, for a terminal."""
    # A writer to the log chooses its characters: an escape sequence must not reach a terminal.
    shown = line if line.isprintable() else ascii(line)[1:-1]
    if len(shown) > SHOWN_CHARACTERS_MAX:
        return f"{shown[:SHOWN_CHARACTERS_MAX]}..."
    return shown
