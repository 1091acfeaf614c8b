"""The demo: a federation in one process on a real sensor stream, with the live page."""
