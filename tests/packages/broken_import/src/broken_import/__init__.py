"""Test plugin: raises at import."""
