"""Helpers for the tests of PlugRL and of its plugins."""
