"""Measurements of speed, memory and size, to be run again on any machine. See
benchmarks/README.md."""
