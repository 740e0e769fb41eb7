"""Estimates memory and time per rank from the observations of one process. Without torch."""
