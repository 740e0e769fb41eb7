"""What a loss is a mean of, read from its graph."""
