"""Test plugin: keeps to every rule."""
