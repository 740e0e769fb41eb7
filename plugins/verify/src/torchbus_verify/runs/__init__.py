"""Running the script: each run in a process and a folder of its own."""
