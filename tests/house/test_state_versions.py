"""A state that has got another form has another version, so that a checkpoint of before is refused
for what it is.

`state_forms.json` has the version and the names in the states of a server and a client. Where a
state changes, raise `STATE_VERSION` in `server_node/node.py` or `client_nodes/node.py`; then
`python -m tests.house.test_state_versions` writes the file again, and only then.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from shoal.config.settings import load_config
from shoal.onebox.federation import OneBox
from shoal.runtime.checkpoint import Checkpoint
from tests.house.rounds_federation import KMEANS, create_rounds_federation
from tests.house.small_federation import CLIENTS, clock

FORMS = Path(__file__).with_name("state_forms.json")
ALGORITHMS = ("fcac", "cluster_tree", "states")
MODELS = KMEANS + "".join(
    f'[[models]]\nname = "{name}"\nalgorithm = "{name}"\n' for name in ALGORITHMS
)
OWNERS = {
    "server": ("server/checkpoint.db", "server of house"),
    "client": (f"clients/{CLIENTS[0]}/checkpoint.db", f"client {CLIENTS[0]} of house"),
}


def names_in(state: Any, above: str = "") -> Iterator[str]:
    """The way to each value of a state; what is in lists, and below keys that are no names, stands
    below a star."""
    if isinstance(state, Mapping):
        for name, value in state.items():
            named = isinstance(name, str) and name.isidentifier() and name not in CLIENTS
            yield from names_in(value, f"{above}.{name if named else '*'}")
    elif isinstance(state, list):
        for value in state:
            yield from names_in(value, f"{above}.*")
    else:
        yield above.removeprefix(".")


def forms(folder: Path) -> dict[str, Any]:
    """The version and the names of the states that a federation with a model of each kind has
    saved."""
    config = load_config(create_rounds_federation(folder, MODELS))
    with OneBox(config, CLIENTS, clock) as box:
        box.run_until_idle()
    found = {}
    for process, (file, owner) in OWNERS.items():
        with closing(Checkpoint(folder / file, owner)) as checkpoint:
            state = checkpoint.load()
        assert state is not None
        found[process] = {"version": state["version"], "names": sorted(set(names_in(state)))}
    return found


def test_states_have_the_names_of_their_version(tmp_path: Path) -> None:
    committed = json.loads(FORMS.read_text(encoding="utf-8"))
    for process, found in forms(tmp_path).items():
        assert found == committed[process], (
            f"raise STATE_VERSION of the {process}, and write {FORMS.name} again"
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        now = forms(Path(scratch))
        before = json.loads(FORMS.read_text(encoding="utf-8"))
    for name, form in now.items():
        if form != before[name] and form["version"] == before[name]["version"]:
            raise SystemExit(f"the state of the {name} has changed: raise its STATE_VERSION first")
    FORMS.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
