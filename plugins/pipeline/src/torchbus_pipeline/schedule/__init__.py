"""Passes: which rank computes which micro-batch when, and what it sends to whom."""
