"""Private names of DeepSpeed and torch; nothing else in this package uses one."""
