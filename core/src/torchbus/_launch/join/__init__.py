"""Joins ranks that a launcher started: torchrun, SLURM, mpirun, or variables set by hand.

It reads the environment and starts nothing.
"""
