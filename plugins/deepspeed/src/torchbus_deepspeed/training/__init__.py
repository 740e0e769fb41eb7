"""Connects the loop's backward, step, clipping and states to DeepSpeed's engines."""
