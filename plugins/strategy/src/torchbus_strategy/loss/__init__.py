"""Finds what a loss is a mean of, from its autograd graph."""
