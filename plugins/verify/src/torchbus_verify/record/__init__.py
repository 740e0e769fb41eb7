"""The record of a run: the tensors of each step, the samples that it used, and its output."""
