"""Audits: attacks on mechanisms from outside, and what they prove of the privacy loss.

An attack guesses which of two inputs made an output. The share of right guesses bounds epsilon from below
(`statistics`), whatever is inside, so a mechanism with too little noise is refuted; none can be proved right in this
way. `onebox.audit` runs the attacks on real clients.
"""
