"""Joins ranks that a launcher started: torchrun, SLURM, mpirun, or variables set by hand.

Reads the environment, and starts nothing.
"""
