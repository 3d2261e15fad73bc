"""The components of a run: what stands inside the Ray workers, and the driver's handle to each of them."""
