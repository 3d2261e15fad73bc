"""Engines for {{ cookiecutter.vendor }}: those of other packages, started in another way."""
