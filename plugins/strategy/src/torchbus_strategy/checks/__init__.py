"""Consistency checks between ranks during training."""
