"""A package made from the template, by the function behind the command."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with the defaults."""
    from plugrl.cli.plugins_new import generate

    return generate("platform", {"vendor": "acme"}, tmp_path_factory.mktemp("made"))
