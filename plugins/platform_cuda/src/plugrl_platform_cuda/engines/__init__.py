"""Engines for nvidia: those of other packages, started in another way."""
