"""Test plugin: claims the same key as duplicate_b."""
