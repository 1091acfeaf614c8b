"""`shoal reproduce`: papers' experiments, run again and compared with the published figures."""

from __future__ import annotations

import click

from shoal.evaluation.continual_command import continual
from shoal.evaluation.gallery_command import pictures
from shoal.evaluation.trials_command import EXPERIMENTS, command_of


@click.group()
def reproduce() -> None:
    """Run a paper's experiment again and compare it with the published figures."""


for command in (*map(command_of, EXPERIMENTS.values()), continual, pictures):
    reproduce.add_command(command)
