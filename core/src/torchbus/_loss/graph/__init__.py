"""What the graph of a loss tells: its terms, what each counts, and their values."""
