"""Audits of what real clients publish: attacks on mechanisms, and on a federation in a scratch
folder."""
