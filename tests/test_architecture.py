"""The layers of the project: each imports from itself and those before it, nothing in a circle; and
habits of the code."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.house.small_federation import create_federation

PROJECT = Path(__file__).parent.parent
PROJECT_FOLDERS = ("producers", "client_nodes", "helper_node", "server_node", "onebox")
"""folders at the top of the repository that are installed as packages of `shoal`:
`shoal.producers`, ..."""
PACKAGES = ("shoal", *PROJECT_FOLDERS, "reproduction")
LAYERS = """
errors text user_warnings files read_only plugins | kernels | saved_state
algorithms privacy config | protocol transports telemetry simulation | runtime estimators cli
helper_node | producers client_nodes server_node | onebox reproduction
"""
"""docs/explanation/design.md has this list; a layer, between two bars, imports from itself and from
those before."""
SERVER_LAYERS = """
history | report | models | regions | ingest | outputs | spans monitoring | lease node
bootstrap replicas page | server_command
"""
"""the same for the folders of `server_node` and the files beside them: no two folders import each
other"""
CLONE_ONLY = {"reproduction"}
"""packages that are in a clone and in the source distribution, and not in the wheel"""
PROCESSES = {"producers", "client_nodes", "server_node"}
EDGE = {
    "shoal",
    "client_nodes",
    "numpy",
    "msgpack",
    "click",
    "prometheus_client",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_extensions",
    "typing_inspection",
}
"""top-level modules an edge client may load: what pyproject.toml lists, and what those need"""
TOP = {"__init__", "__main__"}
PRINTS = {"producers/progress.py": "the line of progress on a terminal"}

FILES = sorted(path for package in PACKAGES for path in (PROJECT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    """shoal/privacy/laplace.py -> shoal.privacy.laplace; producers/pump.py ->
    shoal.producers.pump"""
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(("shoal", *parts) if parts[0] in PROJECT_FOLDERS else parts)


def package_of(module: str) -> str:
    """The folder that a module is in, without "shoal.": privacy, protocol, client_nodes; shoal
    itself is the top."""
    first, *rest = module.split(".")
    if first != "shoal":
        return first
    return rest[0] if rest and rest[0] not in TOP else "shoal"


# Parsed by the first test that needs it: every worker collects this file, and one of them runs it.
@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file, made without the garbage collector.

    It would go through all nodes of all trees again and again, which takes two thirds of the time
    of parsing; no node of a tree is garbage.
    """
    text = path.read_text(encoding="utf-8")
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if collects:
            gc.enable()


def place(path: Path, node: ast.stmt | ast.expr | ast.excepthandler) -> str:
    """Where to look for what is wrong."""
    return f"{path.relative_to(PROJECT)}:{node.lineno}"


@cache
def nodes() -> list[tuple[Path, ast.AST]]:
    """Everything written in any file."""
    return [(path, node) for path in FILES for node in nodes_of(path)]


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Everything written in a file."""
    return tuple(ast.walk(tree_of(path)))


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Every module imported anywhere in a file, also inside functions."""
    return frozenset(_imports_of(path))


def _imports_of(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole way"
            assert node.module is not None
            for alias in node.names:
                path = PROJECT.joinpath(*node.module.split("."), alias.name)
                is_module = path.is_dir() or path.with_suffix(".py").exists()
                yield f"{node.module}.{alias.name}" if is_module else node.module


def within(path: Path) -> set[str]:
    """The other packages that a file imports from."""
    own = package_of(name_of(path))
    found = {package_of(module) for module in imports_of(path) if module.split(".")[0] in PACKAGES}
    return found - {own}


def numbered(layers: str) -> dict[str, int]:
    """name -> the number of the layer that it is in."""
    names_by_layer = layers.replace("\n", "|").strip("|").split("|")
    return {name: number for number, names in enumerate(names_by_layer) for name in names.split()}


LAYER_OF = numbered(LAYERS)


def layer_of(path: Path) -> int:
    """The number of the layer that a file is in."""
    return LAYER_OF.get(package_of(name_of(path)), len(LAYER_OF))


VERSION_ONLY = {"shoal"}
"""`from shoal import __version__` is the one import from the top that every layer may have"""


def test_the_files_of_all_packages_are_found() -> None:
    assert len(FILES) > 80
    assert {"protocol", "transports", "client_nodes"} <= {
        package_of(name_of(path)) for path in FILES
    }


def test_the_layers_are_those_of_the_documentation() -> None:
    page = (PROJECT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
    assert LAYERS.strip() in page


def test_every_package_is_in_a_layer() -> None:
    assert {package_of(name_of(path)) for path in FILES} - {"shoal"} == set(LAYER_OF)


def test_a_file_imports_from_no_later_layer() -> None:
    later = {
        name_of(path): later
        for path in FILES
        if (
            later := {
                package
                for package in within(path) - VERSION_ONLY
                if LAYER_OF[package] > layer_of(path)
            }
        )
    }
    assert later == {}


def test_the_process_packages_never_import_each_other() -> None:
    for path in FILES:
        if package_of(name_of(path)) in PROCESSES:
            assert not within(path) & (PROCESSES | {"onebox", "reproduction"}), path


def part_of_server(module: str) -> str | None:
    """shoal.server_node.ingest.quotas -> ingest; None for what is not in `server_node`."""
    inside = module.removeprefix("shoal.server_node.")
    return None if inside == module else inside.split(".")[0]


def test_a_file_of_the_server_imports_from_no_later_layer_of_it() -> None:
    layer_of_part = numbered(SERVER_LAYERS)
    parts = {part_of_server(name_of(path)) for path in FILES}
    assert parts - {None, "__init__"} == set(layer_of_part)
    upward: list[str] = []
    for path in FILES:
        own = part_of_server(name_of(path))
        if own is None or own == "__init__":
            continue
        for module in imports_of(path):
            part = part_of_server(module)
            if part is not None and layer_of_part[part] > layer_of_part[own]:
                upward.append(f"{name_of(path)} -> {module}")
    assert upward == []


def assert_no_circle(imported: dict[str, set[str]]) -> None:
    """Fails where following imports from a name leads back to it."""
    left = dict(imported)
    while left:
        leaves = {name for name, below in left.items() if not below & set(left)}
        assert leaves, f"these import each other in a circle: {sorted(left)}"
        left = {name: below for name, below in left.items() if name not in leaves}


def test_no_packages_import_each_other_in_a_circle() -> None:
    edges: dict[str, set[str]] = {}
    for path in FILES:
        edges.setdefault(package_of(name_of(path)), set()).update(within(path) - VERSION_ONLY)
    assert_no_circle(edges)


def test_no_files_import_each_other_in_a_circle() -> None:
    # Imports inside functions count: they are what a circle is usually hidden by.
    modules = {name_of(path).removesuffix(".__init__"): path for path in FILES}
    assert_no_circle(
        {name: imports_of(path) & set(modules) - {name} for name, path in modules.items()}
    )


AT_THE_EDGE = """
import sys
before = {name.split(".")[0] for name in sys.modules}
from pathlib import Path
import shoal.client_nodes.client_command
from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from shoal.runtime.service import resumed
config = load_config(Path(sys.argv[1]))
for client in ("attic", "cellar"):
    with resumed(open_client(config, client)) as node:
        node.step()
loaded = {name.split(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names)
print(*sorted(loaded))
"""


def test_a_client_loads_no_package_but_those_that_it_needs(tmp_path: Path) -> None:
    file = tmp_path / "plant.toml"
    example = (PROJECT / "shoal" / "config" / "example.toml").read_text(encoding="utf-8")
    file.write_text(example.replace("[client]\n", "[client]\nlabel = true\n"), encoding="utf-8")
    told = subprocess.run(
        [sys.executable, "-c", AT_THE_EDGE, file],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
    )
    assert told.returncode == 0, told.stderr
    loaded = {name for name in told.stdout.split() if not name.startswith("_")} - {"cython_runtime"}
    assert "numpy" in loaded
    assert loaded <= EDGE
    assert "prometheus_client" not in loaded, (
        "no program reads its metrics, so it need not carry what they take"
    )


WITHOUT_LABELS = """
import sys
from pathlib import Path
import shoal.cli.main
import shoal.client_nodes.client_command
from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from shoal.runtime.service import resumed
for _ in range(2):
    with resumed(open_client(load_config(Path(sys.argv[1])), "attic")) as node:
        while node.step():
            pass
print(*sys.modules)
"""


RARELY_NEEDED = {
    "difflib",
    "unicodedata",
    "subprocess",
    "click.shell_completion",
    "shoal.algorithms.counting",
    "shoal.algorithms.regression",
    "shoal.algorithms.rounds.base",
    "shoal.algorithms.rounds.policies",
    "shoal.protocol.ed25519",
    "shoal.protocol.masked",
    "shoal.privacy.masks",
    "shoal.telemetry.resource",
    "shoal.telemetry.spans",
}
"""modules of which a client needs none that neither signs, masks its counts nor is misspelt, and
whose models all are streaming ones of noisy rows: more than a megabyte"""


def test_a_client_that_does_not_label_loads_nothing_for_it(tmp_path: Path) -> None:
    file = create_federation(tmp_path, ["attic"], readings=120)
    file.write_text(
        file.read_text(encoding="utf-8").replace("label = true\n", ""), encoding="utf-8"
    )
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_LABELS, file],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
    )
    assert ran.returncode == 0, ran.stderr
    loaded = set(ran.stdout.split())
    assert {"shoal.client_nodes.node", "shoal.algorithms.fcac.nodes"} <= loaded
    assert "numpy.ma" not in loaded, (
        "it takes a megabyte; np.unique without a second result loads it"
    )
    assert not {
        name
        for name in loaded
        if "labelling" in name or "novelty" in name or name.endswith(".labels")
    }
    assert not loaded & RARELY_NEEDED


def test_the_edge_may_load_what_the_project_says_it_needs() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {line.split(">")[0].replace("-", "_") for line in project["dependencies"]}
    assert needed < EDGE


def test_every_package_is_shipped() -> None:
    shipped = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]["packages"]
    there = {
        name_of(path).removesuffix(".__init__") for path in FILES if path.name == "__init__.py"
    }
    assert set(shipped) == {name for name in there if name.split(".")[0] not in CLONE_ONLY}
    assert {name_of(path.parent / "x").removesuffix(".x") for path in FILES} == there, (
        "each folder is a package"
    )


LOOKUPS = {"load_algorithm", "streaming_algorithm", "rounds_algorithm", "load_mode", "resolve"}
"""what finds a part of a contract by name, or resolves all of it"""
LOOKUP_FILES_MAX = 3


def test_what_follows_from_a_contract_is_looked_up_in_few_files() -> None:
    callers: dict[str, set[str]] = {name: set() for name in LOOKUPS}
    for path, node in nodes():
        if (
            not isinstance(node, ast.Call)
            or not isinstance(node.func, ast.Name)
            or node.func.id not in LOOKUPS
        ):
            continue
        # The experiments of papers run algorithms by name, without a contract.
        if (
            package_of(name_of(path)) not in CLONE_ONLY
            and name_of(path) != "shoal.algorithms.registry"
        ):
            callers[node.func.id].add(name_of(path))
    assert all(callers.values()), "no longer so"
    assert {
        name: sorted(files) for name, files in callers.items() if len(files) > LOOKUP_FILES_MAX
    } == {}


# A model of another family than these three is a line in `shoal.algorithms.streaming`, and no
# branch elsewhere.
FAMILY_BRANCHES = {"shoal.config.resolved", "shoal.protocol.regions"}
"""files in which the class of an algorithm makes a difference: what resolves it, and what knows
nothing but its name"""


def test_nothing_else_asks_an_algorithm_for_its_class() -> None:
    asking = {
        name_of(path)
        for path, node in nodes()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and any(
            name in ast.unparse(node.args[1])
            for name in ("StreamingAlgorithm", "CountingAlgorithm", "RoundsAlgo")
        )
        and package_of(name_of(path)) not in CLONE_ONLY | {"algorithms"}
    }
    assert asking == FAMILY_BRANCHES


# Habits.


def test_everything_public_has_a_docstring() -> None:
    without = [
        name_of(path)
        for path in FILES
        if tree_of(path).body and not ast.get_docstring(tree_of(path))
    ]
    without += [
        f"{name_of(path)}:{node.name}"
        for path in FILES
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        if not ast.get_docstring(node)
    ]
    assert without == []


def catches_everything(handler: ast.ExceptHandler) -> bool:
    caught = ast.unparse(handler.type) if handler.type else "BaseException"
    return "Exception" in {name.strip("() ") for name in caught.split(",")} | {
        caught.removeprefix("Base")
    }


def test_code_that_catches_every_exception_raises_it_again() -> None:
    silent = [
        place(path, node)
        for path, node in nodes()
        if isinstance(node, ast.ExceptHandler) and catches_everything(node)
        if not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
    ]
    assert silent == []


def test_every_exception_from_lint_and_types_has_its_reason_beside_it() -> None:
    exception = re.compile(r"#\s*(?:noqa|type:\s*ignore)(?P<rest>.*)$")
    reason = re.compile(r"(?::[\s\w,]*?[A-Z]\d+|\[[\w, -]+\])(?:\s+-\s+|\s+#\s*)\w")
    folders = (*PACKAGES, "benchmarks", "deploy", "examples", "tests")
    without = [
        f"{path.relative_to(PROJECT)}:{number}"
        for folder in folders
        for path in sorted((PROJECT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := exception.search(line)) and not reason.match(found["rest"])
    ]
    assert without == []


def test_the_types_of_arrays_are_declared_in_one_file() -> None:
    # A function that returns the type that it is given has a variable for it.
    written = re.compile(r"NDArray\[(?!Element\])")
    declaring = [
        name_of(path) for path in FILES if written.search(path.read_text(encoding="utf-8"))
    ]
    assert declaring == ["shoal.kernels.arrays"]


def test_nothing_is_printed_in_passing() -> None:
    printed = [
        place(path, node)
        for path, node in nodes()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        if str(path.relative_to(PROJECT)) not in PRINTS
    ]
    assert printed == []


def test_the_option_for_the_federation_file_is_declared_in_one_place() -> None:
    declared = {
        name_of(path)
        for path, node in nodes()
        if isinstance(node, ast.Call)
        if "--config" in [getattr(argument, "value", None) for argument in node.args]
    }
    assert declared == {"shoal.cli.options"}


def starts_a_shell(keyword: ast.keyword) -> bool:
    is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
    return keyword.arg == "shell" and not is_false


def test_no_pickle_no_eval_no_shell() -> None:
    forbidden = {"pickle", "marshal", "shelve"}
    found = [
        name_of(path)
        for path in FILES
        if forbidden & {module.split(".")[0] for module in imports_of(path)}
    ]
    for path, node in nodes():
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"eval", "exec"}
        ):
            found.append(place(path, node))
        if isinstance(node, ast.keyword) and starts_a_shell(node):
            found.append(place(path, node.value))
    assert found == []


PREPOSITIONS = {
    "after",
    "as",
    "at",
    "before",
    "between",
    "by",
    "for",
    "from",
    "if",
    "in",
    "of",
    "on",
    "since",
    "that",
    "to",
    "under",
    "until",
    "when",
    "where",
    "while",
    "with",
    "without",
}


def docstrings_of(path: Path) -> list[str]:
    """The docstrings of a file, those of attributes and constants too."""
    bodies = [node.body for node in nodes_of(path) if hasattr(node, "body")]
    texts = [
        statement.value
        for body in bodies
        if isinstance(body, list)
        for statement in body
        if isinstance(statement, ast.Expr)
    ]
    return [
        text.value
        for text in texts
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
    ]


def test_a_docstring_begins_with_what_the_thing_is_or_does() -> None:
    begun = [
        (text.split(maxsplit=1)[0].strip("`(,:").lower(), text)
        for path in FILES
        for text in docstrings_of(path)
    ]
    assert not [text for word, text in begun if word in PREPOSITIONS]
