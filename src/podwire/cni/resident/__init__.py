"""The resident helper: a warm process that does the plugins' work for their executables."""
