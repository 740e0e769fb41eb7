"""Devices of this machine, and moving batches and models to them."""
