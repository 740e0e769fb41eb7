"""A table of the models, printed once after the first step."""
