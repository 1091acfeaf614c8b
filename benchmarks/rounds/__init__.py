"""Algorithms in rounds: time and bytes of an answer and of a round, and memory."""
