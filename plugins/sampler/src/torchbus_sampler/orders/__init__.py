"""Orders of torch's own samplers as arrays, of which a rank reads its slice of each step."""
