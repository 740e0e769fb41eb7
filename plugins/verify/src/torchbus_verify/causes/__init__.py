"""Why two runs differ: suspected causes are removed from both until the difference disappears."""
