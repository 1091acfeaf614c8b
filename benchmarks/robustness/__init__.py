"""What malicious clients can do to a model in rounds, by how answers are combined, and what that
costs without any."""
