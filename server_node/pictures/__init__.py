"""Pictures of a federation for reports, from the same data as the page: its newest snapshot and its history."""
