"""A sink of cluster events: a file to which each event adds a line."""

from __future__ import annotations

from pydantic import Field

from shoal.config.base import FilePath
from shoal.config.extension_settings import SinkSettings
from shoal.server_node.outputs.sinks.base import SinkType


class DiarySettings(SinkSettings):
    """[events.diary]"""

    path: FilePath = Field(description="the file")


class Diary:
    """See `shoal.server_node.outputs.sinks.base.Sink`."""

    def __init__(self, path):
        self.path = path

    def deliver(self, alert, event, model):
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{model} {event} {alert['event']['cluster']}\n")
        return True

    def close(self):
        """Nothing is kept open."""


class DiaryType(SinkType):
    """A diary."""

    name = "diary"
    settings = DiarySettings

    def open(self, settings, federation):
        return Diary(settings.path)


DIARY = DiaryType()
