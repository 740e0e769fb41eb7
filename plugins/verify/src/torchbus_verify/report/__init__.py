"""What is said of two runs: on a screen, as JSON, on a page."""
