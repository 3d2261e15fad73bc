"""Engines for enflame: those of other packages, started in another way."""
