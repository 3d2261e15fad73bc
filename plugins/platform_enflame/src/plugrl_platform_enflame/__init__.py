"""Enflame GCUs: the platform and its engines."""
