"""Test plugin: wants the name of a built-in platform."""
