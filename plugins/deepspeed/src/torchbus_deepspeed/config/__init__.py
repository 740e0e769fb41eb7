"""What DeepSpeed's config says: read, checked against the loop, and filled from it."""
