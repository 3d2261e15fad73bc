
__version__ = "2.13.0+stand_in"
cuda: str | None = None
hip: str | None = "7.1.25424"
xpu: str | None = None
