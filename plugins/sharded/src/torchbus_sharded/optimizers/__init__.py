"""Optimizers of sharded models: they hold the shards, and their ``state_dict`` is whole.

This folder knows optimizers and parameters. Models belong to ``fsdp``.
"""
