"""The record of a run: each step's tensors, the samples it used, its output."""
