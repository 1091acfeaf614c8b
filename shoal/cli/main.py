"""The command `shoal`: collects the commands that installed packages offer, and prints errors in
one line.

A command is found by its entry point in the group `shoal.commands` and imported only when it is
called, so that an edge client does not load what it does not use. A member of the command `privacy`
may be an entry point of its own, in the group `shoal.commands.privacy`.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import threading
from importlib.metadata import EntryPoint
from resource import RLIMIT_CORE, getrlimit, setrlimit
from typing import TYPE_CHECKING, Any, NoReturn

import click

from shoal import __version__
from shoal.errors import MissingExtra, SettingsError, ShoalError
from shoal.plugins import points_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

GROUP = "shoal.commands"
# Written down here, so that the help text of `shoal` imports no command: that took two seconds.
SECTIONS = {
    "Begin": {
        "demo": "cluster a real sensor stream, with a live page",
        "init": "write a federation file for your readings",
        "run": "cluster files of readings in one process",
        "check": "show what a federation file means",
    },
    "Processes": {
        "producer": "store readings for clients",
        "client": "learn the readings of a site, privately",
        "server": "merge updates of clients into clusters",
        "host": "run all clients of a site in one process",
        "helper": "take the masks off sums of counts",
        "replica": "serve regions together with other replicas",
        "page": "serve the live page of a federation from its log",
        "replay": "cluster recorded readings of many clients",
    },
    "Clusters": {
        "picture": "draw the clusters and their history",
        "changes": "compare the clusters of two spans of time",
        "anomalies": "list what was unusual in a span of time",
        "history": "print readings of clusters over time",
        "labels": "print the cluster of each reading, at its site",
        "events": "print what has happened to clusters",
        "mcp": "answer an assistant's questions",
        "snapshot": "export the clusters of a model",
        "rules": "print how a model predicts a feature",
        "name": "give a cluster a name",
        "confirm": "raise no more alerts for a cluster",
        "mute": "raise no alerts for a cluster for a time",
        "wake": "start a round of models in rounds",
    },
    "Clients and keys": {
        "enroll": "make the key and the files of a new site",
        "keys": "make keys for signatures, and tokens",
        "privacy": "report and audit what is guaranteed",
        "clients": "list the clients of a server",
        "quarantine": "absorb nothing more of a client",
        "unlearn": "rebuild every model without a client",
    },
    "Upkeep": {
        "topics": "create and check the topics of a federation",
        "rejected": "print messages that were rejected",
        "backup": "copy the files of running processes",
        "restore": "check a backup, and put it back",
        "upgrade": "bring files to the formats of this version",
        "kernels": "compile the kernels now",
        "reproduce": "run the experiment of a paper again",
    },
}
"""heading of the help text -> its commands -> what each does; those of other packages come last, as
`OTHERS`, with the first sentence of their own help text"""
OTHERS = "Others"
STATUS = (
    "A server shows its state on its page and at /v1/status, `shoal check FILE --log` that of the "
    "models."
)
"""hint for those who look for a command of that name"""
VARIABLE = "SHOAL"
INTERRUPTED = 130
HELP_NAMES = ["-h", "--help"]
THREADS = {"OPENBLAS_NUM_THREADS": "1"}
"""number of threads of NumPy's matrix products, unless the variable is set. Processes share the
work of a federation, and the products are so small that threads wait for each other longer than
they compute, on a busy machine 100 times"""
PLUGINS = {"PYDANTIC_DISABLE_PLUGINS": "__all__"}
"""no plug-ins of pydantic, unless the variable is set: it would look for some in every installed
package, a twentieth of the time to start"""
IN_SECTIONS = [name for section in SECTIONS.values() for name in section]
EXIT_CODES = (
    "Exit codes: 0 success, 1 unexpected error, 2 settings or usage, 3 invalid data or message, "
    "4 log, 5 checkpoint or lease, 130 interrupted."
)


class Commands(click.Group):
    """A group of entry points; its help text imports only the commands of other packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = set(points_of(GROUP).names)
        return [name for name in IN_SECTIONS if name in names] + sorted(names - set(IN_SECTIONS))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        width = max(map(len, names), default=0)
        # The terminal's width less the column of names and the margins, as click has it.
        limit = formatter.width - 6 - width
        sections = {
            title: [(name, summary) for name, summary in section.items() if name in names]
            for title, section in SECTIONS.items()
        }
        others = []
        for name in names:
            command = None
            if name not in IN_SECTIONS:
                command = self.get_command(ctx, name)
            if command is not None:
                others.append((name, command.get_short_help_str(limit)))
        sections[OTHERS] = others
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=width, col_spacing=2)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        points = points_of(GROUP)
        if cmd_name not in points.names:
            return None
        return _load(points[cmd_name], GROUP, VARIABLE)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and options that begin with a text, for completion in a shell; imports no
        command, as a key press would wait for it."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - loaded by a shell only

        summaries = {name: text for section in SECTIONS.values() for name, text in section.items()}
        found = []
        for name in self.list_commands(ctx):
            if name.startswith(incomplete):
                found.append(CompletionItem(name, help=summaries.get(name)))
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as unknown:
            from difflib import get_close_matches  # noqa: PLC0415 - loaded only for a mistake

            hint = ""
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if args[0] == "status":
                hint = STATUS
            elif near:
                hint = f"Did you mean {near[0]!r}?"
            raise click.UsageError(f"{unknown.message} {hint}".rstrip(), ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of the output has ended (`shoal ... | head`), which is no error. What is
            # still buffered goes to the null device, because Python would report the broken pipe
            # again when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return result


def _load(point: EntryPoint, group: str, prefix: str) -> click.Command:
    """The command of an entry point; to a group of commands those of the entry points in
    `group`.NAME are added."""
    # What modules make as they load stays: to look through it for garbage, again and again as it
    # grows, would be a sixth of the time to start.
    gc.disable()
    try:
        command = point.load()
    except ModuleNotFoundError as missing:
        why = f"{point.name} needs the Python module {missing.name}, which is not installed"
        return _unavailable(
            point.name,
            why,
            f"{why}; install shoal with its extras: pip install '.[demo]' in a clone of shoal",
        )
    except MissingExtra as missing:
        return _unavailable(point.name, f"{point.name}: {missing}")
    finally:
        gc.enable()
    if not isinstance(command, click.Command):
        raise TypeError(
            f"the entry point {point.name} of the group {group} does not lead to a click.Command"
        )
    if EXIT_CODES not in (command.epilog or ""):
        command.epilog = f"{command.epilog or ''} {EXIT_CODES}".lstrip()
    own_group = f"{group}.{point.name}"
    own_prefix = f"{prefix}_{point.name}"
    if isinstance(command, click.Group):
        for member in points_of(own_group):
            command.add_command(_load(member, own_group, own_prefix), member.name)
    _set_variables(command, own_prefix)
    return command


def _set_variables(command: click.Command, prefix: str) -> None:
    """Every option can be given as an environment variable with the option's name."""
    # Not `params`: the producer also has the options of the installed sources.
    for option in command.get_params(click.Context(command, help_option_names=HELP_NAMES)):
        if isinstance(option, click.Option) and option.envvar is None and option.name != "help":
            # The long form of an option names its variable; a short one would say nothing.
            flag = max(option.opts, key=len).lstrip("-")
            option.envvar = f"{prefix}_{flag}".replace("-", "_").upper()
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            _set_variables(inner, f"{prefix}_{name}")


def _unavailable(name: str, why: str, error: str = "") -> click.Command:
    """A replacement for a command that cannot be imported, so that the others and the help still
    work."""

    @click.command(
        name, help=f"Not available: {why}.", context_settings={"ignore_unknown_options": True}
    )
    @click.argument("anything", nargs=-1)
    def unavailable(anything: tuple[str, ...]) -> None:
        raise SettingsError(error or why)

    return unavailable


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": HELP_NAMES, "max_content_width": 100},
    epilog=f"{EXIT_CODES} Every option can be given as an environment variable, "
    f"{VARIABLE}_<COMMAND>_<OPTION>.",
)
@click.option("--version", is_flag=True, help="Show the version and exit.")
@click.option(
    "--formats",
    is_flag=True,
    help="With --version: the formats of all files, states and messages, each with its number.",
)
@click.pass_context
def shoal(context: click.Context, version: bool, formats: bool) -> None:
    """Streaming, continual, federated clustering of private sensor readings.

    Start with `shoal demo`. With your own readings, `shoal init DATA` writes a federation file, and
    `shoal run FILE DATA` clusters them in one process. Of several machines, one runs `shoal
    server`, and each site runs `shoal client` and `shoal producer`.
    """
    if version or formats:
        click.echo(f"shoal, version {__version__}")
        if formats:
            from shoal.cli.formats import format_lines  # noqa: PLC0415 - it imports all processes

            click.echo("\n".join(format_lines()))
        context.exit()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Run the command line. A `ShoalError` becomes one line, or one JSON object with --json, and
    its exit code."""
    try:
        _run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            _end_at_once(end.code or 0)
        raise


def _end_at_once(code: int) -> None:
    """End this process as Python does, except that it neither frees its memory piece by piece nor
    waits for kernels that it compiles.

    Freeing takes .4 s of a core: on a machine with many processes several seconds between the last
    line of a process and its end, of the time that a supervisor gives it. A kernel takes a minute.
    All that the command opened is closed. Returns where Python has to end the process: it waits for
    threads, or its output cannot be written.
    """
    forms = sys.modules.get("shoal.kernels.forms")
    for thread in threading.enumerate():
        compiles = forms is not None and forms.PROCESS.is_loading_in(thread)
        if thread is not threading.main_thread() and not thread.daemon and not compiles:
            return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return
    # What modules registered for the end: the standard library has no public function for it.
    atexit._run_exitfuncs()
    os._exit(code)


def _run() -> NoReturn:
    # Before NumPy is imported, which starts its threads then.
    os.environ.update(THREADS | PLUGINS | os.environ)
    # The memory of a process holds keys and readings, and a dump of it would be a file of them.
    setrlimit(RLIMIT_CORE, (0, getrlimit(RLIMIT_CORE)[1]))
    try:
        result = shoal.main(standalone_mode=False)
    except ShoalError as error:
        _fail(error.exit_code, str(error))
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "shoal"
        message = error.format_message()
        if error.ctx and message == error.ctx.get_help():
            # A group without a subcommand: newer versions of click raise its help as an error.
            click.echo(message, err=True)
            sys.exit(error.exit_code)
        if not message.endswith((".", "?")):
            message += "."
        _fail(error.exit_code, f"{message} Try '{command} --help'.")
    except click.ClickException as error:
        _fail(error.exit_code, error.format_message())
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    sys.exit(result if isinstance(result, int) else 0)


def _fail(exit_code: int, message: str) -> NoReturn:
    # By the arguments themselves: an error of usage comes before options are known.
    if "--json" in sys.argv:
        line = json.dumps({"error": message, "exit_code": exit_code})
    else:
        # One line for each fault, whatever breaks of lines a message has of others.
        lines = [" ".join(part.split()) for part in message.strip().split("\n  ")]
        line = "shoal: " + "\n  ".join(lines)
    click.echo(line, err=True)
    sys.exit(exit_code)
