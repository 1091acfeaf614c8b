"""The command `shoal`: collects the commands that installed packages offer, and says errors in one line.

A command is found by its entry point in the group `shoal.commands` and imported only when it is asked for,
so an edge client never loads what it does not use.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from shoal import __version__
from shoal.errors import ShoalError

GROUP = "shoal.commands"
ORDER = ("demo", "check", "producer", "client", "server", "reproduce")
INTERRUPTED = 130


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


def _load(point: EntryPoint) -> click.Command:
    command = point.load()
    if not isinstance(command, click.Command):
        raise TypeError(f"entry point {point.name} is not a command")
    return command


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "auto_envvar_prefix": "SHOAL"},
    epilog="Exit codes: 0 done, 1 unexpected, 2 settings or usage, 3 data or messages refused, 4 the log, "
    "5 a checkpoint, 130 interrupted. Every option can be given as an environment variable, "
    "SHOAL_<COMMAND>_<OPTION>.",
)
@click.version_option(__version__, prog_name="shoal")
def shoal() -> None:
    """Streaming, continual, federated clustering of private sensor readings.

    Begin with `shoal demo`. A federation of your own: write its file (`shoal check --example`), check it
    (`shoal check FILE`), then start one `shoal server`, and a `shoal client` and a `shoal producer` for each site.
    """


def main() -> None:
    """Run the command line. Errors made on purpose are one line and an exit code; with --json an object."""
    try:
        result = shoal.main(standalone_mode=False)
    except ShoalError as error:
        _say(error.exit_code, str(error))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`shoal ... | head`): nothing is wrong and nobody is listening.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(result if isinstance(result, int) else 0)


def _say(exit_code: int, message: str) -> None:
    said: dict[str, Any] = {"error": message, "exit_code": exit_code}
    line = " ".join(message.split())
    click.echo(json.dumps(said) if "--json" in sys.argv else f"shoal: {line}", err=True)
    sys.exit(exit_code)
