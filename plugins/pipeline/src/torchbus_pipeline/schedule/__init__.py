"""Runs passes: the order of micro-batches on each rank, and the messages between ranks."""
