"""Private names of torch and CPython, and nothing else."""
