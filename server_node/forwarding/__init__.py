"""Forwarding of cluster events by webhook or MQTT: all of them, or those that alert rules name."""
