"""Test plugin: raises OSError at import."""
