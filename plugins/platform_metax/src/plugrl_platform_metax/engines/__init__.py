"""Engines for metax: those of other packages, started in another way."""
