"""Engines for cambricon: those of other packages, started in another way."""
