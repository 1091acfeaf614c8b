"""The layers of the project: each imports from itself and those before it, nothing in a circle; and limits of size."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.small_federation import create_federation

PROJECT = Path(__file__).parent.parent
PACKAGES = ("shoal", "producers", "client_nodes", "server_node", "onebox", "reproduction")
LAYERS = """
errors files plugins | kernels | algorithms privacy config
protocol transports telemetry | runtime estimators cli
producers client_nodes server_node | onebox reproduction
"""
"""docs/explanation/design.md has this list; a layer, between two bars, imports from itself and from those before."""
CLONE_ONLY = {"reproduction"}
"""packages that are in a clone and in the source distribution, and not in the wheel"""
PROCESSES = {"producers", "client_nodes", "server_node"}
EDGE = {
    *("shoal", "client_nodes", "numpy", "msgpack", "click", "prometheus_client"),
    *("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"),
}
"""top-level modules an edge client may load: what pyproject.toml lists, and what those need"""
TOP = {"__init__", "__main__"}
LINES_MAX = 500
LONGER_FILES: dict[str, str] = {}
"""files with more lines than `LINES_MAX`, and the reason: what outgrows it is usually two things"""
FUNCTION_LINES_MAX = 40
LONGER_FUNCTIONS = {
    "shoal/telemetry/metrics.py:__init__": "one declaration for each metric",
    "reproduction/trials_command.py:_parameters": "one declaration for each option of a command",
}
"""functions with more lines than `FUNCTION_LINES_MAX`, and the reason; a docstring does not count"""
PRINTS = {"producers/progress.py": "the line of progress on a terminal"}

FILES = sorted(path for package in PACKAGES for path in (PROJECT / package).rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def name_of(path: Path) -> str:
    """shoal/privacy/laplace.py -> shoal.privacy.laplace"""
    return ".".join(path.relative_to(PROJECT).with_suffix("").parts)


def package_of(module: str) -> str:
    """The folder that a module is in, without "shoal.": privacy, protocol, client_nodes; shoal itself is the top."""
    first, *rest = module.split(".")
    if first != "shoal":
        return first
    return rest[0] if rest and rest[0] not in TOP else "shoal"


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Every module imported anywhere in a file, also inside functions."""
    for node in ast.walk(tree):
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
    found = {package_of(module) for module in imports_of(TREES[path]) if module.split(".")[0] in PACKAGES}
    return found - {own}


LAYER_OF = {
    package: number
    for number, packages in enumerate(LAYERS.replace("\n", "|").strip("|").split("|"))
    for package in packages.split()
}
VERSION_ONLY = {"shoal"}
"""`from shoal import __version__` is the one import from the top that every layer may have"""


def test_the_files_of_all_packages_are_found() -> None:
    assert len(FILES) > 80
    assert {"protocol", "transports", "client_nodes"} <= {package_of(name_of(path)) for path in FILES}


def test_the_layers_are_those_of_the_documentation() -> None:
    page = (PROJECT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
    assert LAYERS.strip() in page


def test_every_package_is_in_a_layer() -> None:
    assert {package_of(name_of(path)) for path in FILES} - {"shoal"} == set(LAYER_OF)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_imports_from_no_later_layer(path: Path) -> None:
    own = LAYER_OF.get(package_of(name_of(path)), len(LAYER_OF))
    later = {package for package in within(path) - VERSION_ONLY if LAYER_OF[package] > own}
    assert not later


def test_the_process_packages_never_import_each_other() -> None:
    for path in FILES:
        if package_of(name_of(path)) in PROCESSES:
            assert not within(path) & (PROCESSES | {"onebox", "reproduction"}), path


def test_no_packages_import_each_other_in_a_circle() -> None:
    edges: dict[str, set[str]] = {}
    for path in FILES:
        edges.setdefault(package_of(name_of(path)), set()).update(within(path) - VERSION_ONLY)
    left = dict(edges)
    while left:
        leaves = {package for package, below in left.items() if not below & set(left)}
        assert leaves, f"these import each other in a circle: {sorted(left)}"
        left = {package: below for package, below in left.items() if package not in leaves}


def test_the_files_of_a_process_do_not_import_each_other_in_a_circle() -> None:
    for package in sorted(PROCESSES | {"onebox", "reproduction"}):
        modules = {name_of(path): path for path in FILES if name_of(path).startswith(f"{package}.")}
        left = {name: set(imports_of(TREES[path])) & set(modules) - {name} for name, path in modules.items()}
        while left:
            leaves = {name for name, below in left.items() if not below & set(left)}
            assert leaves, f"these import each other in a circle: {sorted(left)}"
            left = {name: below for name, below in left.items() if name not in leaves}


AT_THE_EDGE = """
import sys
before = {name.split(".")[0] for name in sys.modules}
from pathlib import Path
import client_nodes.command
from client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
config = load_config(Path(sys.argv[1]))
for client in ("attic", "cellar"):
    with open_client(config, client) as node:
        node.step()
loaded = {name.split(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names)
print(*sorted(loaded))
"""


def test_a_client_loads_no_package_but_those_that_it_needs(tmp_path: Path) -> None:
    file = tmp_path / "plant.toml"
    example = (PROJECT / "shoal" / "config" / "example.toml").read_text(encoding="utf-8")
    file.write_text(example.replace("[client]\n", "[client]\nlabel = true\n"), encoding="utf-8")
    told = subprocess.run(
        [sys.executable, "-c", AT_THE_EDGE, file], capture_output=True, text=True, check=False, cwd=PROJECT
    )
    assert told.returncode == 0, told.stderr
    loaded = {name for name in told.stdout.split() if not name.startswith("_")} - {"cython_runtime"}
    assert "numpy" in loaded
    assert loaded <= EDGE
    assert "prometheus_client" not in loaded, "no program reads its metrics, so it need not carry what they take"


WITHOUT_LABELS = """
import sys
from pathlib import Path
import client_nodes.command
from client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
for _ in range(2):
    with open_client(load_config(Path(sys.argv[1])), "attic") as node:
        while node.step():
            pass
print(*sys.modules)
"""


def test_a_client_that_does_not_label_loads_nothing_for_it(tmp_path: Path) -> None:
    file = create_federation(tmp_path, ["attic"], readings=120)
    file.write_text(file.read_text(encoding="utf-8").replace("label = true\n", ""), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_LABELS, file], capture_output=True, text=True, check=False, cwd=PROJECT
    )
    assert ran.returncode == 0, ran.stderr
    loaded = set(ran.stdout.split())
    assert {"client_nodes.node", "shoal.algorithms.fcac.nodes"} <= loaded
    assert "numpy.ma" not in loaded, "it takes a megabyte; np.unique without a second result loads it"
    assert not {one for one in loaded if "labelling" in one or "novelty" in one or one.endswith(".labels")}


def test_the_edge_may_load_what_the_project_says_it_needs() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {line.split(">")[0].replace("-", "_") for line in project["dependencies"]}
    assert needed < EDGE


def test_every_package_is_shipped() -> None:
    shipped = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    there = {name_of(path).removesuffix(".__init__") for path in FILES if path.name == "__init__.py"}
    assert set(shipped) == {name for name in there if name.split(".")[0] not in CLONE_ONLY}
    assert {name_of(path.parent / "x").removesuffix(".x") for path in FILES} == there, "each folder is a package"


# Habits.


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_has_a_limited_number_of_lines(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LINES_MAX or str(path.relative_to(PROJECT)) in LONGER_FILES, f"{lines} lines"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_function_has_a_limited_number_of_lines(path: Path) -> None:
    for node in ast.walk(TREES[path]):
        if not isinstance(node, ast.FunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
        lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
        name = f"{path.relative_to(PROJECT)}:{node.name}"
        assert lines <= FUNCTION_LINES_MAX or name in LONGER_FUNCTIONS, f"{name} has {lines} lines"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_everything_public_has_a_docstring(path: Path) -> None:
    tree = TREES[path]
    if tree.body:
        assert ast.get_docstring(tree), "the file itself"
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_code_that_catches_every_exception_raises_it_again(path: Path) -> None:
    for node in ast.walk(TREES[path]):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = ast.unparse(node.type) if node.type else "BaseException"
        if "Exception" in {name.strip("() ") for name in caught.split(",")} | {caught.removeprefix("Base")}:
            assert any(isinstance(inner, ast.Raise) for inner in ast.walk(node)), f"line {node.lineno}"


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


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_is_printed_in_passing(path: Path) -> None:
    if str(path.relative_to(PROJECT)) in PRINTS:
        return
    calls = [node for node in ast.walk(TREES[path]) if isinstance(node, ast.Call)]
    assert not [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_pickle_no_eval_no_shell(path: Path) -> None:
    assert not {"pickle", "marshal", "shelve"} & {module.split(".")[0] for module in imports_of(TREES[path])}
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec"}, f"line {node.lineno}"
        if isinstance(node, ast.keyword) and node.arg == "shell":
            assert isinstance(node.value, ast.Constant), f"line {node.value.lineno}"
            assert node.value.value is False, f"line {node.value.lineno}"
