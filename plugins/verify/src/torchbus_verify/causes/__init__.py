"""Finds why two runs differ, by removing suspected causes until the difference disappears."""
