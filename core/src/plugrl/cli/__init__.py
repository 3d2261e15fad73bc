"""The command line. Each group of commands is a module that is imported when one of its commands is called."""

from __future__ import annotations
