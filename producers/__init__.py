"""Producers: sources of readings (`files`, `synthetic`, `mqtt`), and the pump that paces them into
readings logs.

Start at `producer_command.py`, the command `shoal producer`. A source type (`source_type.py`)
brings its options and settings; one of numbered readings (`PumpedSource`) opens a `Source`
(`source.py`) that a `Pump` (`pump.py`) stores.
"""
