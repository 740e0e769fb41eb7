"""Training scripts as people write them, which know nothing of torchbus."""
