"""Prefix arithmetic."""
