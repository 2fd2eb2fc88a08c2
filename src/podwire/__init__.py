"""Kubernetes pod and service networking in Python."""

__version__ = "0.1.0"
