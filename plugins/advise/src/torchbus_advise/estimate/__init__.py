"""From what was observed in one process to what each rank of many would need. No torch in here."""
