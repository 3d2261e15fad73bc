"""The conformance kit: what a vendor runs to know that a platform does what its manifest declares.

A check is a function with an id, a level and a capability (:mod:`plugrl.testing.kit.checks`). The checks of a level are
in the modules whose names start with it (``l1_rng.py``); each level runs in a process of its own
(:mod:`plugrl.testing.kit.process`) that a runner watches (:mod:`plugrl.testing.kit.runner`).
"""

from __future__ import annotations
