"""States that go and come back: whether density_tree keeps their numbers, at any pace."""
