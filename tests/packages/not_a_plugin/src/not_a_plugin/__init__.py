"""Test plugin: names no manifest."""
