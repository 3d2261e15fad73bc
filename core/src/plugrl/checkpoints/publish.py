"""Uploading a model folder to a model hub; the client for it is imported only when asked for."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from plugrl.errors import CheckpointError, MissingDependency, one_line

logger = logging.getLogger(__name__)

ALLOWED = ("*.safetensors", "*.json", "*.yaml", "*.md")
"""What is uploaded of a folder; shards and anything else stay."""
_CARD = "README.md"
_FAULTS = (OSError, ValueError, RuntimeError)


def push_to_hub(folder: Path, repository: str, *, private: bool | None = None) -> str:
    """Upload ``folder`` to the model repository, made if needed; returns its address.

    Raises MissingDependency without the client, CheckpointError when the upload fails. A model card that cannot be
    written is a warning.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise MissingDependency(
            "--push-to-hub needs the hub's client. Install it: pip install huggingface_hub"
        ) from error
    api = HfApi()
    try:
        address = str(api.create_repo(repository, private=private, repo_type="model", exist_ok=True))
        api.upload_folder(
            repo_id=repository, repo_type="model", folder_path=str(folder), allow_patterns=list(ALLOWED),
            commit_message="Upload weights",
        )  # fmt: skip
    except _FAULTS as error:
        raise CheckpointError(f"{folder} could not be uploaded to {repository}: {one_line(error)}") from error
    if not (folder / _CARD).is_file():
        _upload_card(api, repository, folder)
    return address


def _upload_card(api: Any, repository: str, folder: Path) -> None:
    text = f"---\nlibrary_name: plugrl\ntags: [plugrl]\n---\n\n# {repository}\n\nTrained with PlugRL.\n"
    try:
        api.upload_file(path_or_fileobj=text.encode(), path_in_repo=_CARD, repo_id=repository, repo_type="model")
    except _FAULTS as error:
        logger.warning("%s was uploaded without a model card: %s", folder, one_line(error))
