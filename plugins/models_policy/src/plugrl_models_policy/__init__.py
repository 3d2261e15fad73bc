"""Small policies for control tasks. Importing this package is light; its modules are not."""

from __future__ import annotations
