"""Workers of a local Ray that begin with torch imported: forks of one process that has imported it for all of them.

A worker of its own accord imports for seconds what every other one imports too. Here Ray's server starts a small script
(``start/worker.py``) in the place of a worker; it asks the preloaded process (:mod:`plugrl.runtime.preload.server`) for
a fork with the worker's variables, or, where that would make a difference, becomes the worker as usual.
"""

from plugrl.runtime.preload.pool import PRELOAD, PreloadedProcess, modules_of, sdk_of

__all__ = ["PRELOAD", "PreloadedProcess", "modules_of", "sdk_of"]
