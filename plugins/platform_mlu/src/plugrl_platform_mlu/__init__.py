"""Cambricon MLUs: the platform and its engines."""
