"""Discovery: sorted, without exact duplicates, and never stopped by damaged metadata."""

from __future__ import annotations

from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from plugrl.plugins.discovery import discover, normalize


@pytest.fixture
def installed(tmp_path: Path):
    """Write the metadata of a distribution and return it."""

    def write(folder: str, name: str | None, entries: dict[str, str], *, direct_url: str | None = None) -> Distribution:
        place = tmp_path / folder / f"{name or 'nameless'}-1.0.dist-info"
        place.mkdir(parents=True)
        if name is not None:
            (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = ["[console_scripts]", "tool = tool:main", "[plugrl.plugins]"]
        lines += [f"{key} = {value}" for key, value in entries.items()]
        (place / "entry_points.txt").write_text("\n".join(lines))
        if direct_url is not None:
            (place / "direct_url.json").write_text(direct_url)
        return PathDistribution(place)

    return write


def test_the_order_of_the_file_system_does_not_matter(installed):
    found = [installed("site", name, {"y": "m:p", "x": "m:p"}) for name in ("zeta", "Acme_B", "acme-a")]
    expected = [("acme-a", "x"), ("acme-a", "y"), ("Acme_B", "x"), ("Acme_B", "y"), ("zeta", "x"), ("zeta", "y")]
    for order in (found, found[::-1]):
        assert [(plugin.distribution, plugin.name) for plugin in discover(order)] == expected


def test_a_double_install_counts_once_and_the_first_on_the_path_wins(installed):
    first, second = (installed(folder, "acme-a", {"x": f"{folder}:plugin"}) for folder in ("first", "second"))
    assert [plugin.value for plugin in discover([first, second])] == ["first:plugin"]


def test_metadata_without_a_name_and_other_groups_do_no_harm(installed, tmp_path):
    nameless = installed("site", None, {"x": "m:plugin"})
    empty = tmp_path / "site" / "empty-1.0.dist-info"
    empty.mkdir()
    (plugin,) = discover([nameless, PathDistribution(empty)])
    assert plugin.distribution is None and plugin.title == "x" and plugin.names == {"x"}


@pytest.mark.parametrize(
    ("record", "path"),
    [
        ('{"url": "file:///src/acme", "dir_info": {"editable": true}}', "/src/acme"),
        ('{"url": "file:///src/acme", "dir_info": {}}', None),
        ('{"url": "file:///src/a%20b", "dir_info": {"editable": true}}', "/src/a b"),
        ('{"url": "file:///src/acme", "dir_info": null}', None),
        ("[1]", None),
        ("no json", None),
    ],
)
def test_an_editable_install_shows_its_folder(installed, record, path):
    (plugin,) = discover([installed("site", "acme-a", {"x": "m:plugin"}, direct_url=record)])
    assert plugin.path == path and plugin.origin.path == path


def test_names_are_equal_as_in_pep_503():
    assert normalize(" Plugrl_Platform.ACME ") == normalize("plugrl-platform--acme") == "plugrl-platform-acme"


def test_spaces_and_extras_of_an_entry_point_are_left_out(installed):
    (plugin,) = discover([installed("site", "acme-a", {"x": "m.plugin : plugin [fast]"})])
    assert plugin.value == "m.plugin:plugin"


def test_damaged_metadata_are_that_distributions_alone(installed, bench):
    """One file that cannot be parsed is a failed plugin; letters of another encoding hide only name and version."""
    garbage, latin = installed("site", "acme-a", {}), installed("site", "acme-b", {"b": "m:plugin"})
    (garbage._path / "entry_points.txt").write_text("[plugrl.plugins]\nno assignment\n")  # type: ignore[attr-defined]
    (latin._path / "METADATA").write_bytes(b"Name: acme-b\nAuthor: M\xfcller\n")  # type: ignore[attr-defined]
    bench.found = discover([garbage, latin])
    named = {plugin.name: plugin.distribution for plugin in bench.found}
    assert named == {"acme-a": "acme-a", "b": None}
    assert "entry_points.txt is damaged" in bench.load().find("acme-a").reason
