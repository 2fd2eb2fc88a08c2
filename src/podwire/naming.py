"""Every derived name and its inverse."""
