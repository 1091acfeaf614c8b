"""Labels of a client's own readings: cluster, identity, novelty, and their export. Loaded only
where they are used."""
