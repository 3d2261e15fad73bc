"""GSM8K: from its JSONL files to records, or to parquet in the field layout that verl uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plugrl.data.loading import import_parquet, read_rows, to_record
from plugrl.data.records import PromptRecord, Splits
from plugrl.data.registry import DataSettings
from plugrl.errors import ConfigError, DataError
from plugrl.rewards.gsm8k import label

DATA_SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
"""What verl adds to each question, after a space."""


def convert_gsm8k(
    input: str | Path, output: str | Path, *, split: str | None = None, instruction: str = INSTRUCTION
) -> int:
    """Convert a JSONL file of GSM8K (``question``, ``answer``) to parquet in verl's layout.

    Each row has ``data_source``, ``prompt`` (one user message), ``ability``, ``reward_model`` (style, ground_truth) and
    ``extra_info`` (split, index, answer, question). ``split`` is by default taken from the file's name.

    Returns:
        The number of rows written.

    Raises:
        DataError: a missing or malformed input, with its line, or no ``#### number`` in an answer.
        MissingDependency: pyarrow is not installed.
    """
    parquet = import_parquet()
    import pyarrow

    rows = list(gsm8k_rows(input, split=split or Path(input).stem, instruction=instruction))
    if not rows:
        raise DataError(f"{input}: the file has no rows.")
    target = Path(output)
    target.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), target)
    return len(rows)


def gsm8k_rows(path: str | Path, *, split: str, instruction: str = INSTRUCTION) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSONL file in verl's layout. Raises DataError naming file and line."""
    for index, (place, row) in enumerate(read_rows(path)):
        question, answer = _field(row, "question", place), _field(row, "answer", place)
        try:
            truth = label(answer)
        except DataError as error:
            raise DataError(f"{place}: {error}") from error
        content = f"{question} {instruction}" if instruction else question
        yield {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": content}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
        }


def gsm8k(config: DataSettings, *, path: str | None = None, instruction: str = INSTRUCTION) -> Splits:
    """Load a folder with ``train.jsonl`` and ``test.jsonl``: the data set ``gsm8k``.

    The worked answer of the data set is each record's ``response``. Raises ConfigError without ``path``, DataError for
    a missing or malformed file.
    """
    if path is None:
        raise ConfigError("data.source_options.path: name the folder that holds train.jsonl and test.jsonl.")
    folder = Path(path).expanduser()
    return Splits(
        train=_records(folder / "train.jsonl", "train", instruction),
        val=_records(folder / "test.jsonl", "test", instruction),
    )


def _records(file: Path, split: str, instruction: str) -> list[PromptRecord]:
    rows = gsm8k_rows(file, split=split, instruction=instruction)
    return [to_record({**row, "response": row["extra_info"]["answer"]}, str(file)) for row in rows]


def _field(row: Mapping[str, Any], name: str, place: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise DataError(f'{place}: "{name}" must be a text that is not empty.')
    return value
