"""The watch in production: every so many steps, rank 0 computes the step of all ranks by itself."""
