"""The whole path, from a producer's reading to the snapshot that holds it, through real processes."""
