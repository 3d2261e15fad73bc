"""`plugrl data`: write data sets in the layouts that runs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from plugrl.data import PromptRecord

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="markdown", help="Prepare data sets.")


@app.command()
def gsm8k(
    input: Annotated[Path, typer.Option("--input", metavar="FILE", help="JSONL with `question` and `answer`.")],
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="The parquet file to write.")],
    split: Annotated[
        str | None, typer.Option("--split", help="Name of the split; the name of the file if left out.")
    ] = None,
) -> None:
    """Convert a file of GSM8K to parquet in verl's layout."""
    from plugrl.data import convert_gsm8k

    count = convert_gsm8k(input, output, split=split)
    typer.echo(f"{count} problems written to {output}")


@app.command()
def arithmetic(
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder for train.jsonl and val.jsonl.")],
    operators: Annotated[str, typer.Option(help="Some of `+ - *`.")] = "+-",
    low: Annotated[int, typer.Option("--min", help="Smallest operand.")] = 0,
    high: Annotated[int, typer.Option("--max", help="Largest operand.")] = 99,
    num_train: Annotated[int, typer.Option(help="Training problems.")] = 4096,
    num_val: Annotated[int, typer.Option(help="Held-out problems, none of them among the training ones.")] = 512,
    seed: Annotated[int, typer.Option(help="The same seed gives the same problems.")] = 0,
) -> None:
    """Write distinct problems such as `12+34=` with their answers."""
    from plugrl.data.arithmetic import arithmetic as generate

    splits = generate(operators=operators, min=low, max=high, num_train=num_train, num_val=num_val, seed=seed)
    for name, records in (("train", splits.train), ("val", splits.val)):
        _write(output / f"{name}.jsonl", list(records))
        typer.echo(f"{len(records)} problems written to {output / f'{name}.jsonl'}")


def _write(path: Path, records: list[PromptRecord]) -> None:
    from plugrl.tracking.files import write_atomic

    rows = (
        {
            "prompt": record.prompt,
            "response": record.response,
            "ground_truth": record.ground_truth,
            "data_source": record.data_source,
            "extra_info": dict(record.extra_info),
        }
        for record in records
    )
    write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
