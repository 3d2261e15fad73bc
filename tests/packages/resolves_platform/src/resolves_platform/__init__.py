"""Test plugin: resolves the platform while loading."""
