"""Clusters as people see them: identities, descriptions, events, history, forwarding and pictures."""
