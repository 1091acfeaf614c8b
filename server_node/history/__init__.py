"""The history of each model: which clusters its readings fell to, and which clients they came from,
over time.

Bins of 5 minutes are kept for two days and bins of 30 minutes for a year, both counted back from
the newest one. They are keyed by the times in the updates and made of private data alone. Each bin
that has changed is published with the next snapshot; a file beside the server's checkpoint holds
the same for the page and `/v1/history`.
"""
