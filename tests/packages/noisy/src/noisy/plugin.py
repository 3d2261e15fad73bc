"""Prints at import and when the process ends, with Python and past it, where NOISY is set."""

from __future__ import annotations

import atexit
import os

from plugrl.plugins import PLUGIN_API, PlatformEntry, Plugin

if os.environ.get("NOISY"):
    print("noisy: a greeting")
    os.write(1, b"noisy: a banner of its library \xff\n")
    atexit.register(print, "noisy: good-bye")

plugin = Plugin(
    name="noisy",
    api=PLUGIN_API,
    requires_core=">=0.1,<1",
    summary="prints wherever it can",
    platforms=(
        PlatformEntry(
            name="noisy", vendor="acme", device="acme", probe="noisy.probe:probe", target="noisy.probe:Noisy"
        ),
    ),
)
