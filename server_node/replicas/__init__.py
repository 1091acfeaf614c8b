"""Replicas: processes that together serve the models of many regions, on Kafka."""
