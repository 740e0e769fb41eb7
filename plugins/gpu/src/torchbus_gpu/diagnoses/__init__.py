"""What the field looks for in these curves, found and named: GPUs that wait for the loader, and a slow rank."""
