"""The command line: every command has a help text, and an error is one line with the documented
exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest

from shoal import errors
from shoal.cli import main as main_module
from shoal.cli.main import EXIT_CODES, GROUP, SECTIONS, VARIABLE, _load
from shoal.cli.main import shoal as group
from shoal.config.contract import load_contract
from shoal.config.settings import load_config
from tests.federation_text import federation_text
from tests.forked_python import ForkedPython

Shoal = Callable[..., subprocess.CompletedProcess[str]]
COMMANDS = group.list_commands(click.Context(group))


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoal]:
    """Runs a command in a process of its own; keywords are variables of its environment."""
    with closing(ForkedPython()) as commands:

        def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
            return commands.run_text(*words, environment=os.environ | environment)

        yield run


@pytest.fixture(scope="module")
def example(shoal: Shoal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "example.toml"
    path.write_text(shoal("check", "--example").stdout, encoding="utf-8")
    return path


def test_without_arguments_the_help_is_printed(shoal: Shoal) -> None:
    result = shoal()
    assert result.returncode == 0
    assert result.stdout == shoal("--help").stdout
    assert all(command in result.stdout for command in COMMANDS)


def test_the_help_imports_no_command() -> None:
    program = (
        "import atexit, sys; from shoal.cli.main import main; sys.argv[1:] = ['--help']\n"
        "shown = lambda: print(*sorted(name for name in sys.modules if 'shoal.' in name))\n"
        "atexit.register(shown)\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1].split() == [
        "shoal.cli",
        "shoal.cli.main",
        "shoal.errors",
        "shoal.plugins",
    ]


@pytest.mark.parametrize(
    ("sections", "not_loaded"),
    [
        ({}, ("shoal.runtime.logs", "shoal.protocol.messages", "shoal.producers")),
        (
            {"mqtt": {"host": "127.0.0.1"}},
            ("shoal.producers.files.source", "shoal.producers.influx", "shoal.producers.kafka"),
        ),
    ],
)
def test_a_check_loads_no_log_no_message_and_no_algorithm_or_source_that_the_file_does_not_name(
    sections: dict[str, dict[str, str]], not_loaded: tuple[str, ...], tmp_path: Path
) -> None:
    """They are half of what it takes to load the command with them."""
    file = tmp_path / "plant.toml"
    file.write_text(federation_text(**sections), encoding="utf-8")
    program = (
        "import atexit, sys; from shoal.cli.main import main; sys.argv[1:1] = ['check']\n"
        "atexit.register(lambda: print(*sys.modules))\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, file], capture_output=True, text=True, check=True
    )
    loaded = set(ended.stdout.splitlines()[-1].split())
    assert "shoal.algorithms.fcac" in loaded
    assert ("shoal.producers.mqtt.source" in loaded) == ("mqtt" in sections)
    # `np.unique` loads NumPy's masked arrays.
    never = ("numpy.ma.", "shoal.algorithms.density_tree")
    assert not {name for name in loaded if name.startswith((*never, *not_loaded))}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_without_importing_them(
    shell: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "_load", None)
    monkeypatch.setenv("_SHOAL_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "shoal cl")
    monkeypatch.setenv("COMP_CWORD", "cl" if shell == "fish" else "1")
    with pytest.raises(SystemExit):
        main_module.shoal.main(prog_name="shoal", complete_var="_SHOAL_COMPLETE")
    printed = capfd.readouterr().out
    assert "client" in printed
    assert "clients" in printed
    assert "host" not in printed


def test_neither_privacy_nor_mcp_loads_a_node_or_the_page() -> None:
    program = (
        "import sys, shoal.onebox.audit.audit_command, shoal.server_node.outputs.mcp_command\n"
        "import shoal.cli.privacy; print(*sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(ended.stdout.split())
    assert "shoal.config.privacy_report" in loaded
    assert not loaded & {"shoal.client_nodes.node", "shoal.server_node.node", "starlette"}


@pytest.mark.parametrize(("given", "threads"), [(None, "1"), ("2", "2")])
def test_matrix_products_take_one_thread_unless_a_variable_says_otherwise(
    given: str | None, threads: str
) -> None:
    program = """
import atexit, os, sys
from shoal.cli.main import main
assert "numpy" not in sys.modules
atexit.register(lambda: print(os.environ["OPENBLAS_NUM_THREADS"]))
main()
"""
    name = "OPENBLAS_NUM_THREADS"
    environment = {key: value for key, value in os.environ.items() if key != name} | (
        {name: given} if given else {}
    )
    command = [sys.executable, "-c", program, "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.splitlines()[-1] == threads


def test_the_commands_are_those_of_pyproject_in_the_order_of_first_use() -> None:
    project = tomllib.loads(
        (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    )["project"]
    assert set(COMMANDS) == set(project["entry-points"][GROUP])
    assert set(COMMANDS) == {name for some in SECTIONS.values() for name in some}, (
        "each under a heading"
    )
    assert COMMANDS[:8] == [
        "demo",
        "init",
        "run",
        "check",
        "producer",
        "client",
        "server",
        "host",
    ]


HELP_OF_ALL = """
import json
import sys

from click.testing import CliRunner

from shoal.cli.main import shoal

found = {}
for command in sys.argv[1:]:
    for option in ("--help", "-h"):
        result = CliRunner().invoke(shoal, [command, option], prog_name="shoal")
        found[f"{command} {option}"] = [result.exit_code, result.stdout, result.stderr]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def help_of_all() -> dict[str, tuple[int, str, str]]:
    """Of the words of each command with --help and -h: exit code, standard output and error.

    In a process of their own: a command that a test of this process has run by itself, without the
    group it belongs to, keeps the names of click for its help, and has no -h from then on.
    """
    ended = subprocess.run(
        [sys.executable, "-c", HELP_OF_ALL, *COMMANDS], capture_output=True, text=True, check=True
    )
    found = json.loads(ended.stdout).items()
    return {words: (code, output, error) for words, (code, output, error) in found}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_text_with_exit_codes(
    command: str, help_of_all: dict[str, tuple[int, str, str]]
) -> None:
    # A process of each command's own is started by test_without_extras.
    code, output, error = help_of_all[f"{command} --help"]
    assert (code, error) == (0, "")
    assert output.startswith(f"Usage: shoal {command}")
    assert EXIT_CODES in " ".join(output.split())
    assert help_of_all[f"{command} -h"] == (0, output, "")


def test_the_exit_codes_of_the_errors_are_those_in_the_help() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.ShoalError)
    ]
    assert {kind.exit_code for kind in kinds} == {1, 2, 3, 4, 5}
    for code in range(1, 6):
        assert f" {code} " in EXIT_CODES


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nonsense"], "No such command 'nonsense'. Try 'python -m shoal --help'."),
        (
            ["check"],
            "name a federation FILE, or ask for --example. Try 'python -m shoal check --help'.",
        ),
        (["check", "--nonsense"], "No such option '--nonsense'"),
        (
            ["check", "/nowhere/x.toml"],
            "/nowhere/x.toml: no such file; `shoal check --example` prints one to start from",
        ),
        (["check", "/"], "is a directory"),
        (["client", "--name", "a"], "Missing option '--config'"),
        (
            ["client", "--config", "EXAMPLE", "--name", " "],
            "the name of a client has at least one letter or digit",
        ),
        (
            ["server", "--config", "EXAMPLE", "--until-idle", "-1"],
            "Invalid value for '--until-idle'",
        ),
    ],
)
def test_an_error_is_one_line_or_one_object(
    shoal: Shoal, example: Path, arguments: list[str], expected: str
) -> None:
    arguments = [str(example) if argument == "EXAMPLE" else argument for argument in arguments]
    result = shoal(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("shoal: ")
    assert result.stderr.count("\n") == 1
    assert expected in result.stderr
    if len(arguments) > 1:
        as_json = shoal(*arguments, "--json")
        assert as_json.returncode == 2
        assert expected in json.loads(as_json.stderr)["error"]
        assert json.loads(as_json.stderr)["exit_code"] == 2


def test_the_version_is_printed(shoal: Shoal) -> None:
    assert shoal("--version").stdout.startswith("shoal, version ")


def test_a_closed_output_is_no_error(example: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "shoal", "check", example],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    with child.stderr:
        assert child.stderr.read() == b""
    assert child.wait() == 0


# shoal check.


def test_the_example_is_valid(shoal: Shoal, example: Path) -> None:
    result = shoal("check", example)
    assert (result.returncode, result.stderr) == (0, "")
    contract = load_contract(example)
    assert contract.digest in result.stdout
    assert "Formal guarantee for every reading\n" in result.stdout
    assert "epsilon 4 per reading" in result.stdout
    for feature in contract.features:
        assert feature.name in result.stdout


def test_check_prints_the_contract_as_json(shoal: Shoal, example: Path) -> None:
    result = json.loads(shoal("check", example, "--json").stdout)
    assert result["digest"] == load_contract(example).digest
    assert result["contract"]["federation"] == "greenhouse"
    assert result["epsilon_per_model"] == {"clusters": 4.0}
    assert result["epsilon_total"] == 4.0


def settings_of(lines: list[str]) -> dict[str, list[str]]:
    """Section -> its lines, of what `shoal check` prints."""
    sections = (
        "log",
        "readings",
        "client",
        "server",
        "replica",
        "upstream",
        "events",
        "events.webhook",
        "mqtt",
    )
    return {
        name: found
        for name in sections
        if (found := [line for line in lines if line.split()[0] == name])
    }


def test_check_prints_the_settings_that_differ_from_their_defaults(
    shoal: Shoal, example: Path
) -> None:
    file = example.with_name("changed.toml")
    more = (
        '\n[replica]\ncommit_s = 2\n[readings]\naddress = "kafka://127.0.0.1:9"\n[events]\nfolder ='
        ' "data/events"\n[events.webhook]\nurl = "http://127.0.0.1:9"\n[mqtt]\nport = 0\ntls ='
        " true\n"
    )
    text = example.read_text(encoding="utf-8").replace(
        "[client]\n", "[client]\npublish_readings = 50\n"
    )
    file.write_text(text + more, encoding="utf-8")
    lines = shoal("check", file).stdout.splitlines()
    assert settings_of(lines) == {
        "readings": ['readings    address = "kafka://127.0.0.1:9"'],
        "client": ["client      publish_readings = 50"],
        "replica": ["replica     commit_s = 2.0"],
        "events.webhook": ['events.webhook url = "http://127.0.0.1:9"'],
        "mqtt": ["mqtt        tls = true"],
    }
    assert any("--all" in line for line in lines)


def test_check_of_a_file_that_repeats_the_defaults_prints_no_setting(
    shoal: Shoal, example: Path
) -> None:
    assert settings_of(shoal("check", example).stdout.splitlines()) == {}


def test_check_all_prints_every_setting_and_every_option(shoal: Shoal, example: Path) -> None:
    file = example.with_name("all.toml")
    model = '\n[[models]]\nname = "rounds"\nalgorithm = "kmeans"\noptions = { clusters = 3 }\n'
    text = example.read_text(encoding="utf-8").replace(
        "[privacy]\n", "[privacy]\nepsilon_per_reading = 400.0\n"
    )
    file.write_text(text + model, encoding="utf-8")
    short, lines = (shoal("check", file, *words).stdout.splitlines() for words in ((), ("--all",)))
    found = settings_of(lines)
    config = load_config(file)
    for name in ("log", "client", "server", "replica", "upstream", "events"):
        assert len(found[name]) == len(type(getattr(config, name)).model_fields)
    assert "client      label = false" in lines
    assert "client      signing_key_file = none" in lines
    assert "rounds      rounds  default options" in short
    (rounds,) = (line for line in lines if line.startswith("rounds "))
    assert "deadline_s = 10.0" in rounds
    (kmeans,) = (
        line for line in lines if line.startswith("model       rounds  kmeans  clusters = 3")
    )
    assert "clusters_max = " in kmeans


def test_options_can_come_from_the_environment(shoal: Shoal, example: Path) -> None:
    assert json.loads(shoal("check", example, SHOAL_CHECK_JSON="1").stdout)
    result = shoal("client", SHOAL_CLIENT_CONFIG=str(example), SHOAL_CLIENT_NAME=" ")
    assert "the name of a client" in result.stderr
    result = shoal("server", SHOAL_SERVER_CONFIG=str(example), SHOAL_SERVER_UNTIL_IDLE="x")
    assert "'x' is not a valid float" in result.stderr


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"density_tree"', '"density_wood"', "models.clusters: unknown algorithm 'density_wood'"),
        (
            '"density_tree"',
            '"density_tree"\noptions = { speed = 1 }',
            "density_tree has no option 'speed'",
        ),
        ("low = -10.0", "low = 50.0", "features[1]: low 50 is not below high 50"),
        ("port = 8765", "prot = 8765", "[server]: prot: unknown name"),
    ],
)
def test_an_invalid_file_is_a_one_line_error(
    shoal: Shoal, example: Path, tmp_path: Path, old: str, new: str, expected: str
) -> None:
    text = example.read_text(encoding="utf-8")
    assert old in text
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(text.replace(old, new), encoding="utf-8")
    result = shoal("check", wrong)
    assert (result.returncode, result.stdout) == (2, "")
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "privacy", ['mode = "off"', 'mode = "paper"\nepsilon_nominal_per_feature = 20']
)
def test_check_describes_the_other_privacy_modes(
    shoal: Shoal, example: Path, tmp_path: Path, privacy: str
) -> None:
    text = example.read_text(encoding="utf-8").replace("density_tree", "fcac")
    lines = [line for line in text.splitlines() if not line.startswith(("mode", "counts_epsilon"))]
    lines.insert(lines.index("[privacy]") + 1, privacy)
    other = tmp_path / "other.toml"
    other.write_text("\n".join(lines), encoding="utf-8")
    result = shoal("check", other)
    assert result.returncode == 0, result.stderr
    assert "privacy     No" in result.stdout
    assert "what an attacker learns" not in result.stdout, "nothing is guaranteed"


def test_check_marks_baselines_that_exist_for_comparison_only(
    shoal: Shoal, example: Path, tmp_path: Path
) -> None:
    file = tmp_path / "baseline.toml"
    model = '\n[[models]]\nname = "alone"\nalgorithm = "kmeans_local"\noptions = { clusters = 2 }\n'
    text = example.read_text(encoding="utf-8").replace(
        "[privacy]\n", "[privacy]\nepsilon_per_reading = 400.0\n"
    )
    file.write_text(text + model, encoding="utf-8")
    lines = shoal("check", file).stdout.splitlines()
    marked = [line for line in lines if "only for comparison" in line]
    assert len(marked) == 1
    assert "alone  kmeans_local" in marked[0]
    assert json.loads(shoal("check", file, "--json").stdout)["paper_only"] == ["alone"]


# Commands that cannot be imported.


def test_a_command_that_cannot_be_imported_breaks_neither_the_help_nor_the_others() -> None:
    command = _load(EntryPoint("demo", "no_such_module.command:demo", GROUP), GROUP, VARIABLE)
    assert "Not available" in str(command.help)
    with pytest.raises(errors.SettingsError, match="demo needs the Python module no_such_module"):
        command.main(["--folder", "x", "y"], standalone_mode=False)


def test_without_the_extras_the_other_commands_still_run(example: Path) -> None:
    blocked = (
        "import sys; sys.modules.update(dict.fromkeys(['rich', 'starlette', 'matplotlib',"
        " 'sklearn', 'scipy']));"
    )
    for arguments, code in ((["--help"], 0), (["check", str(example)], 0)):
        program = f"{blocked} sys.argv[1:] = {arguments!r}; from shoal.cli.main import main; main()"
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        assert result.returncode == code, result.stderr
        assert result.stderr == ""


EXTRAS = (
    "rich",
    "starlette",
    "uvicorn",
    "matplotlib",
    "sklearn",
    "scipy",
    "pyarrow",
    "paho",
    "kafka",
    "onnx",
)
EXTRAS += ("pyspark", "numba", "cryptography", "quixstreams", "pandas", "river", "lz4")
NEEDING = {"demo", "run", "replay", "mcp", "privacy audit"}
"""commands that are not available without any extra"""


def test_only_commands_that_need_an_extra_are_missing_without_it(tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))
import click
from shoal.cli.main import shoal
from shoal.errors import MissingExtra
from shoal.producers.files.tables import open_table
def each(command, name):
    if "Not available" in str(command.help):
        print(name)
    if not isinstance(command, click.Group):
        return
    for inner in command.list_commands(click.Context(command)):
        each(command.get_command(click.Context(command), inner), f"{{name}} {{inner}}".strip())
each(shoal, "")
for arguments in (["mcp"], ["privacy", "audit"]):
    try:
        shoal(arguments, standalone_mode=False)
    except MissingExtra:
        print(*arguments)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.stderr == ""
    assert set(ended.stdout.splitlines()) == NEEDING


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_an_idle_client_stops_cleanly_on_sigterm(example: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "shoal", "client", "--config", example, "--name", "attic", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    assert child.stdout is not None
    with child.stderr, child.stdout:
        assert json.loads(child.stderr.readline())["event"] == "started"
        assert json.loads(child.stderr.readline())["event"] == "privacy"
        while not (example.parent / "data/clients/attic/checkpoint.db").exists():
            assert child.poll() is None
        child.send_signal(signal.SIGTERM)
        assert json.loads(child.stderr.read().splitlines()[-1])["event"] == "stopped"
        result = json.loads(child.stdout.read())
        assert result.pop("client") == "attic"
        assert set(result.values()) <= {0}
    assert child.wait() == 0


def test_every_option_of_every_command_can_be_given_in_the_environment() -> None:
    context = click.Context(group)
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        for option in command.get_params(click.Context(command)):
            if isinstance(option, click.Option) and option.name != "help":
                assert str(option.envvar).startswith(f"SHOAL_{name.upper()}_"), (name, option.name)


def test_an_option_of_a_source_is_read_from_the_environment(shoal: Shoal, tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text(
        '[federation]\nname = "one"\n[[features]]\nname = "a"\nlow = 0\nhigh = 9\n[privacy]\nmode ='
        ' "off"\n[[models]]\nname = "m"\nalgorithm = "fcac"\n'
    )
    rows = tmp_path / "rows.csv"
    rows.write_text("a\n1\n2\n3\n4\n")
    arguments = ("producer", "--config", file, rows, "--clients", "2", "--json")
    ended = shoal(*arguments, SHOAL_PRODUCER_ONLY="client-1")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1])["clients"] == {"client-1": 2}


def test_a_command_leaves_to_python_the_end_of_a_thread_that_python_waits_for() -> None:
    program = (
        "import sys, threading\n"
        "from shoal.cli.main import main\n"
        "main_thread = threading.main_thread()\n"
        "threading.Thread(target=lambda: (main_thread.join(), print('last'))).start()\n"
        "main()\n"
    )
    command = [sys.executable, "-c", program, "--version"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "last"


COMPILING = """
import sys, threading
from shoal.cli.main import main
from shoal.kernels import forms
forms.load_compiled = lambda may_compile: threading.Event().wait()
assert forms.PROCESS.compiled_for(2 * forms.ROWS_BEFORE_LOADING) is None
print("computing")
main()
"""


@pytest.mark.parametrize(
    ("word", "code", "said"), [("--version", 0, "version"), ("nonsense", 2, "No such command")]
)
def test_a_command_ends_while_its_kernels_are_compiled(word: str, code: int, said: str) -> None:
    command = [sys.executable, "-c", COMPILING, word]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == code
    assert ended.stdout.startswith("computing")
    assert said in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("word", "said"), [("lables", "Did you mean 'labels'?"), ("status", "/v1/status"), ("x", "")]
)
def test_a_command_that_is_not_there_leads_to_one_that_is(
    shoal: Shoal, word: str, said: str
) -> None:
    result = shoal(word)
    assert result.returncode == 2
    assert f"No such command {word!r}." in result.stderr
    assert said in result.stderr
    assert said or "mean" not in result.stderr
