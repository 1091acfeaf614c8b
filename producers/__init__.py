"""Producers: where readings come from (`replay`, `synthetic`), whose they are (`split`), and the pump that paces them.

The door is `shoal producer` (`command.py`). As a library: a `Source` (`source.py`) handed to a `Pump` (`pump.py`).
"""
