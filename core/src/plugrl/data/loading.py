"""Records from JSONL and parquet files. A malformed row is an error that names file and line.

Understood columns, verl's layout among them:

- the prompt: ``prompt_key`` (a text, or a list of chat messages), else ``question``;
- the ground truth: ``reward_model.ground_truth``, else ``ground_truth``, ``answer``, ``response`` in this order;
- ``response`` for supervised training, ``data_source``, ``extra_info``; other columns are added to ``extra_info``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plugrl.data.records import PromptRecord, Splits
from plugrl.data.registry import DataSettings
from plugrl.errors import ConfigError, DataError, MissingDependency, nearest

_KNOWN = {"reward_model", "ground_truth", "response", "data_source", "extra_info"}
JSONL_SUFFIXES = (".jsonl", ".json", ".ndjson")


def files(config: DataSettings) -> Splits:
    """Load ``data.train_files`` and ``data.val_files``: the data set ``files``.

    Raises:
        ConfigError: no files given.
        DataError: as :func:`load_records`.
    """
    if not config.train_files and not config.val_files:
        raise ConfigError("data.train_files: name at least one JSONL or parquet file, or set data.source.")
    return Splits(
        train=load_records(config.train_files, prompt_key=config.prompt_key),
        val=load_records(config.val_files, prompt_key=config.prompt_key),
    )


def load_records(paths: str | Path | Sequence[str | Path], *, prompt_key: str = "prompt") -> list[PromptRecord]:
    """Load all records of one or several files, in order.

    Raises:
        DataError: a file is missing, empty, of an unknown kind or malformed; line (parquet: row) and field are named.
        MissingDependency: a parquet file, and pyarrow is not installed.
    """
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    records: list[PromptRecord] = []
    for name in names:
        before = len(records)
        for place, row in read_rows(name):
            records.append(to_record(row, place, prompt_key=prompt_key))
        if len(records) == before:
            raise DataError(f"{name}: the file has no rows.")
    return records


def read_rows(path: str | Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (place for messages, row) for every row of a JSONL or parquet file; blank lines are skipped.

    Raises: as :func:`load_records`.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(f"{file}: {'this is a folder, not a file.' if file.is_dir() else 'no such file.'}")
    if file.suffix == ".parquet":
        yield from _read_parquet(file)
    elif file.suffix in JSONL_SUFFIXES:
        yield from _read_jsonl(file)
    else:
        raise DataError(f'{file}: unknown kind of file "{file.suffix}". Known: .parquet, {", ".join(JSONL_SUFFIXES)}.')


def _read_jsonl(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    # Split at line feeds only: other separators may stand inside a JSON string.
    for number, raw in enumerate(file.read_bytes().split(b"\n"), start=1):
        place = f"{file}, line {number}"
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            row = json.loads(line) if line else None
        except UnicodeDecodeError as error:
            raise DataError(f"{place}: not UTF-8 ({error.reason} at byte {error.start}).") from error
        except json.JSONDecodeError as error:
            raise DataError(f"{place}: not JSON ({error.msg} at column {error.colno}).") from error
        if not line:
            continue
        if not isinstance(row, dict):
            raise DataError(f"{place}: expected a JSON object, got {type(row).__name__}.")
        yield place, row


def _read_parquet(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    parquet = import_parquet()
    try:
        table = parquet.read_table(file)
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise DataError(f"{file}: not a readable parquet file ({error}).") from error
    for number, row in enumerate(table.to_pylist(), start=1):
        yield f"{file}, row {number}", row


def import_parquet() -> Any:
    """Import pyarrow's parquet module, which only parquet files need.

    Raises:
        MissingDependency: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingDependency("Parquet files need pyarrow. Install it with: pip install pyarrow") from error
    return parquet


def to_record(row: Mapping[str, Any], place: str, *, prompt_key: str = "prompt") -> PromptRecord:
    """Make a record of a row; see the module for the columns.

    Raises:
        DataError: no prompt, a prompt that is neither text nor messages, no ground truth; ``place`` is named.
    """
    key = prompt_key if prompt_key in row or prompt_key != "prompt" else "question"
    if key not in row:
        like = nearest(prompt_key, row)
        hint = f' Did you mean data.prompt_key="{like}"?' if like else f" It has: {', '.join(row)}."
        raise DataError(f'{place}: no column "{prompt_key}".{hint}')
    prompt, messages = _prompt(row[key], f'{place}, "{key}"')
    info = row.get("extra_info") or {}
    if not isinstance(info, Mapping):
        raise DataError(f'{place}: "extra_info" must be an object, got {type(info).__name__}.')
    others = {name: value for name, value in row.items() if name not in _KNOWN and name != key}
    response = row.get("response")
    return PromptRecord(
        messages=messages,
        prompt=prompt,
        response=None if response is None else str(response),
        ground_truth=_ground_truth(row, place),
        data_source=str(row.get("data_source") or "unknown"),
        extra_info={**others, **info},
    )


def _prompt(value: Any, place: str) -> tuple[str | None, tuple[Mapping[str, Any], ...] | None]:
    if isinstance(value, str):
        if not value:
            raise DataError(f"{place}: the prompt is empty.")
        return value, None
    if not isinstance(value, Sequence) or not value:
        raise DataError(f"{place}: expected a text or a list of messages, got {type(value).__name__}.")
    for index, message in enumerate(value):
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise DataError(f'{place}: message {index} needs "role" and "content".')
    return None, tuple(value)


def _ground_truth(row: Mapping[str, Any], place: str) -> Any:
    model = row.get("reward_model")
    if isinstance(model, Mapping) and "ground_truth" in model:
        return model["ground_truth"]
    for name in ("ground_truth", "answer", "response"):
        if row.get(name) is not None:
            return row[name]
    raise DataError(f'{place}: no ground truth. Give "ground_truth" or "reward_model": {{"ground_truth": ...}}.')
