"""States that are whole on every rank, though each keeps only its own part."""
