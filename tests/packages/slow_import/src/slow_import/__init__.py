"""Test plugin: slow to import."""
