"""Engines for amd: those of other packages, started in another way."""
