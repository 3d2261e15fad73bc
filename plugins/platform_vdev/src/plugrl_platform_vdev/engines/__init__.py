"""Engines for vdev: those of other packages, started in another way."""
