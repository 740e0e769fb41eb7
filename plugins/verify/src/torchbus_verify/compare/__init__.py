"""Two records side by side: where they differ, from which step on, and by how much."""
