"""The only modules of the core that use private names of torch and CPython."""
