"""The pool of ranks for the tests of this folder."""

from plugrl.testing.ranks import ranks

__all__ = ["ranks"]
