"""The loop's backward, step, clipping and states, led to DeepSpeed's engines."""
