"""Test plugin: prints wherever it can."""
