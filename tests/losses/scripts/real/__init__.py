"""The loops of real_loops.py, in the shapes of public repositories. Each takes a Run."""
