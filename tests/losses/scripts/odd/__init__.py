"""The loops of odd_loops.py. Each takes a Run, which has a model, an optimizer and batches."""
