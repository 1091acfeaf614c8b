"""`shoal reproduce`: the papers' experiments, run again and set beside what was published."""

from __future__ import annotations

import click

from shoal.evaluation.continual_command import continual
from shoal.evaluation.fcac_command import fcac
from shoal.evaluation.gallery_command import pictures
from shoal.evaluation.rounds_command import EXPERIMENTS, command_of


@click.group()
def reproduce() -> None:
    """Run a paper's experiment again and compare with its published figures."""


for experiment in (fcac, continual, pictures, *map(command_of, EXPERIMENTS.values())):
    reproduce.add_command(experiment)
