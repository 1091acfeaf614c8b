"""The way of a record of the topic of updates: validation, quotas, quarantine, reassembly,
requests, rejections."""
