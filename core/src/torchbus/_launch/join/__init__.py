"""Joins ranks that a launcher started: torchrun, SLURM, mpirun, horovodrun, or variables set by
hand.

It reads the environment and starts nothing.
"""
