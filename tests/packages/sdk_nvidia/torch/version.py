
__version__ = "2.13.0+stand_in"
cuda: str | None = "12.8"
hip: str | None = None
xpu: str | None = None
