"""Clients that the server absorbs nothing more from, and the commands that name them."""
