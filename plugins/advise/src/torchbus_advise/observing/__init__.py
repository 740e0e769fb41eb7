"""What the first steps of a loop keep in memory and compute."""
