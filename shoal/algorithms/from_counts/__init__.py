"""Streaming algorithms that learn rows made from private counts on a public grid, instead of noisy
rows."""
