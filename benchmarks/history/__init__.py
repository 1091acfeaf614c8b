"""What the history of clusters and the live page cost the server: disk, time in a step, and
memory."""
