"""Engines for flagos: those of other packages, started in another way."""
