"""The page of a federation as a process of its own, which only reads the federation's log."""
