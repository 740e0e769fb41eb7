"""A world of fake tensors: shapes and dtypes without memory and arithmetic."""
