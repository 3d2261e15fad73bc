"""Engines for huawei: those of other packages, started in another way."""
