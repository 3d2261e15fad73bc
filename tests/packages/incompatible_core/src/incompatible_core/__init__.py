"""Test plugin: needs another core."""
