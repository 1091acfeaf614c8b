"""Audits of what real clients publish: the attacks of `shoal.privacy.audit` on a federation in a scratch folder."""
