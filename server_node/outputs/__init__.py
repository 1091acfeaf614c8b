"""What programs and people outside get from the server: pictures, exports, commands, and sinks of
cluster events."""
