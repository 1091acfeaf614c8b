# Completion of shoal for fish. What is proposed is that of the installed version.
_SHOAL_COMPLETE=fish_source shoal | source
