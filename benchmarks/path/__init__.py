"""The path from a producer's reading to the snapshot with it, through real processes."""
