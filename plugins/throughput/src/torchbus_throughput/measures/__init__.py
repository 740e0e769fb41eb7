"""Measurements of a window: samples, tokens, operations, time and power."""
