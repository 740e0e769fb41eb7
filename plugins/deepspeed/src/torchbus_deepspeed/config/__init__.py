"""DeepSpeed's config: read, checked against the loop, and completed from it."""
