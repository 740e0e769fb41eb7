"""Why two runs differ: suspected causes are taken away from both, until the difference goes."""
