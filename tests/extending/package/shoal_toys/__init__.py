"""One extension of shoal of each kind."""
