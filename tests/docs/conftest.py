"""Reading the documentation: pages, fenced blocks, tables, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=.*")
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Page:
    """A page: its path and its text."""

    path: Path
    text: str

    @property
    def prose(self) -> str:
        """The page without its fenced blocks."""
        return _FENCE.sub("", self.text)

    @property
    def code_spans(self) -> list[str]:
        """Every text in backticks outside the fenced blocks."""
        return _CODE.findall(self.prose)

    @property
    def links(self) -> list[str]:
        """Every link that leads to another file."""
        return [link for link in _LINK.findall(self.prose) if "://" not in link]

    def blocks(self, language: str) -> list[str]:
        """The texts of the fenced blocks of a language."""
        return [found[2] for found in _FENCE.finditer(self.text) if found[1] == language]

    def tables(self) -> Iterator[tuple[str, list[list[str]]]]:
        """Yield each table: the heading it stands under, and its rows, the titles first."""
        heading, rows = "", []
        for line in [*self.prose.splitlines(), ""]:
            if line.startswith("|"):
                rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
            elif rows:
                yield heading, [rows[0], *rows[2:]]
                rows = []
            if line.startswith("#"):
                heading = line.lstrip("# ")

    def first_column(self, *, heading: str | None = None, title: str | None = None) -> list[str]:
        """What stands in backticks in the first column of the tables under a heading, or with a title there."""
        found = [
            name
            for where, (titles, *rows) in self.tables()
            if heading == where or title == titles[0]
            for row in rows
            for name in _CODE.findall(row[0])
        ]
        assert found, f"{self.path} has no table {heading or title!r}"
        return found


@dataclass(frozen=True)
class Command:
    """A line of a shell block: the page, the variables before the command, and its words."""

    page: Page
    variables: dict[str, str]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.path}: {shlex.join(self.words)}"


class Documentation:
    """All pages of the repository: those at the root, in ``docs/``, and those of each package."""

    def __init__(self, root: Path) -> None:
        self.root = root
        patterns = ("*.md", "docs/**/*.md", "core/*.md", "plugins/*/*.md", "plugins/*/docs/*.md")
        paths = sorted(path for pattern in patterns for path in root.glob(pattern))
        self.pages = {str(path.relative_to(root)): Page(path, path.read_text()) for path in paths}

    def __getitem__(self, name: str) -> Page:
        return self.pages[name]

    def blocks(self, language: str) -> list[tuple[Page, str]]:
        """Every fenced block of a language with its page."""
        return [(page, text) for page in self.pages.values() for text in page.blocks(language)]

    def commands(self) -> list[Command]:
        """Every line of every shell block."""
        lines = [(page, line) for page, text in self.blocks("sh") for line in text.splitlines() if line.strip()]
        return [self._command(page, line) for page, line in lines]

    def _command(self, page: Page, line: str) -> Command:
        words = shlex.split(line)
        count = next((i for i, word in enumerate(words) if not _VARIABLE.fullmatch(word)), len(words))
        variables = dict(word.split("=", 1) for word in words[:count])
        return Command(page, variables, tuple(words[count:]))


@pytest.fixture(scope="session")
def docs() -> Documentation:
    """The documentation of this repository."""
    return Documentation(Path(__file__).resolve().parents[2])
