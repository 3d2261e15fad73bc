"""Test plugin: calls sys.exit at import."""
