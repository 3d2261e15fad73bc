"""Engines for intel: those of other packages, started in another way."""
