"""Finds what a loss is a mean of, from its autograd graph, and weights the ranks' losses by it."""
