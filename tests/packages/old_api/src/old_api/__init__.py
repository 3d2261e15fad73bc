"""Test plugin: written for an old plugin API."""
