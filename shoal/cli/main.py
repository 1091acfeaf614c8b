"""The command `shoal`: collects the commands that installed packages offer, and says errors in one line.

A command is found by its entry point in the group `shoal.commands` and imported only when it is asked for,
so an edge client never loads what it does not use.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from shoal import __version__
from shoal.errors import SettingsError, ShoalError

GROUP = "shoal.commands"
ORDER = ("demo", "check", "producer", "client", "server", "wake", "topics", "rejected", "keys", "reproduce")
VARIABLE = "SHOAL"
INTERRUPTED = 130
EXIT_CODES = (
    "Exit codes: 0 done, 1 unexpected, 2 settings or usage, 3 data or messages rejected, 4 the log, 5 a checkpoint, "
    "130 interrupted."
)


class Commands(click.Group):
    """A group whose members are entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = {point.name for point in entry_points(group=GROUP)}
        return [name for name in ORDER if name in names] + sorted(names - set(ORDER))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for point in entry_points(group=GROUP):
            if point.name == cmd_name:
                return _load(point)
        return None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of our output went away (`shoal ... | head`): nothing is wrong and nobody is listening. What
            # is still buffered goes nowhere, else Python would complain when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return result


def _load(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except ModuleNotFoundError as missing:
        return _absent(point.name, str(missing.name))
    if not isinstance(command, click.Command):
        raise TypeError(f"entry point {point.name} is not a command")
    command.epilog = f"{command.epilog} {EXIT_CODES}" if command.epilog else EXIT_CODES
    _name_variables(command, f"{VARIABLE}_{point.name}")
    return command


def _name_variables(command: click.Command, prefix: str) -> None:
    """An option can be given in the environment by the name it has on the command line."""
    for option in command.params:
        if isinstance(option, click.Option) and option.envvar is None:
            flag = max(option.opts, key=len).lstrip("-")
            option.envvar = f"{prefix}_{flag}".replace("-", "_").upper()
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            _name_variables(inner, f"{prefix}_{name}")


def _absent(name: str, module: str) -> click.Command:
    """A command in the place of one that cannot be loaded here: the others and the help go on."""
    why = f"{name} needs the Python module {module}, which is not installed here"

    @click.command(name, help=f"Not available: {why}.", context_settings={"ignore_unknown_options": True})
    @click.argument("anything", nargs=-1)
    def absent(anything: tuple[str, ...]) -> None:
        raise SettingsError(f"{why}; install shoal with all its extras: pip install 'shoal[demo]'")

    return absent


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"{EXIT_CODES} Every option can be given as an environment variable, {VARIABLE}_<COMMAND>_<OPTION>.",
)
@click.version_option(__version__, prog_name="shoal")
@click.pass_context
def shoal(context: click.Context) -> None:
    """Streaming, continual, federated clustering of private sensor readings.

    Begin with `shoal demo`. A federation of your own: write its file (`shoal check --example`), check it
    (`shoal check FILE`), then start one `shoal server`, and a `shoal client` and a `shoal producer` for each site.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Run the command line. Errors made on purpose are one line and an exit code; with --json an object."""
    try:
        result = shoal.main(standalone_mode=False)
    except ShoalError as error:
        _say(error.exit_code, str(error))
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "shoal"
        what = error.format_message()
        _say(error.exit_code, f"{what}{'' if what.endswith(('.', '?')) else '.'} Try '{command} --help'.")
    except click.ClickException as error:
        _say(error.exit_code, error.format_message())
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    sys.exit(result if isinstance(result, int) else 0)


def _say(exit_code: int, message: str) -> None:
    said: dict[str, Any] = {"error": message, "exit_code": exit_code}
    line = " ".join(message.split())
    click.echo(json.dumps(said) if "--json" in sys.argv else f"shoal: {line}", err=True)
    sys.exit(exit_code)
