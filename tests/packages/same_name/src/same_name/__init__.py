"""Test plugin: takes the name of good_plugin."""
