"""What ranks compare while they train."""
