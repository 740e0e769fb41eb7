"""What a run leaves behind: each step's tensors, the samples it used, what it printed."""
