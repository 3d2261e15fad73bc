"""Test plugin: imports numpy."""
