"""What the server knows, for people and programs: typed, immutable, made after each snapshot."""
