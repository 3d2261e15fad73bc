"""Remove what the answers leave out."""

from __future__ import annotations

import shutil
from pathlib import Path

WANTED = {
    ".github": "{{ cookiecutter.with_ci }}",
    "src/{{ cookiecutter.__package }}/engines": "{{ cookiecutter.with_engine }}",
}

for path, answer in WANTED.items():
    if answer != "True":
        shutil.rmtree(Path(path))
