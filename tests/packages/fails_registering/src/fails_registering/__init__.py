"""Test plugin: fails while registering."""
