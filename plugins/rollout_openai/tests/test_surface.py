"""The checker: what it finds in sources of every shape, and what it says of what is missing."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from plugrl.errors import ConfigError
from plugrl_rollout_openai import in_process
from plugrl_rollout_openai.surface import Folder, Use, Wheel, main, problems, record
from plugrl_rollout_openai.testing import Recorded

SOURCES = {
    "eng/__init__.py": "from .core import Engine as Main\nfrom eng.extra import *\n",
    "eng/core.py": '''
from .base import Base
try:
    from fast import Quick
except ImportError:
    Quick = None

class Engine(Base[int]):
    def __init__(self, path, *, size=1, **kwargs): ...
    async def generate(self, prompt, params, *, lora=None): ...
    def run(self, a, b=2, *rest): ...

if True:
    class Options:
        first: int = 0
        second = 3

ORDER = ("alpha", "beta")
''',
    "eng/base.py": '''
class Base:
    inherited: str
    def stop(self, now=False): ...
''',
    "eng/http.py": '''
@app.post("/load")
async def load(request, label): ...

@app.api_route("/both", methods=["GET", "POST"])
async def both(obj): ...
''',
}  # fmt: skip
GOOD = (
    Use("call", "eng:Main", ("path", "size", "anything")),
    Use("call", "eng.core:Engine.generate", ("prompt", "params", "lora")),
    Use("call", "eng.core:Engine.run", ("a",)),
    Use("call", "eng.core:Engine.stop", ("now",)),
    Use("fields", "eng.core:Options", ("first", "second")),
    Use("fields", "eng.core:Engine", ("inherited",)),
    Use("values", "eng.core:ORDER", ("beta",)),
    Use("route", "eng.http:POST /load", ("label",)),
    Use("route", "eng.http:GET /both"),
)
BAD = {
    Use("call", "eng.core:Engine.generate", ("prompt", "params", "seed")): "generate has no seed",
    Use("call", "eng.core:Engine.generate", ("prompt",)): "generate wants params",
    Use("call", "eng.core:Engine.abort"): "Engine.abort is missing",
    Use("call", "eng.gone:f"): "eng.gone:f is missing",
    Use("fields", "eng.core:Options", ("third",)): "Options has no third",
    Use("values", "eng.core:ORDER", ("gamma",)): "ORDER has no gamma",
    Use("route", "eng.http:POST /gone"): "POST /gone is missing",
    Use("route", "eng.http:PUT /both"): "PUT /both is missing",
}


@pytest.fixture(params=["folder", "wheel"])
def source(request, tmp_path: Path):
    """The sources as an installed folder and as a wheel."""
    if request.param == "folder":
        for name, text in SOURCES.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        yield Folder(tmp_path)
        return
    with zipfile.ZipFile(tmp_path / "eng-1-py3-none-any.whl", "w") as file:
        for name, text in SOURCES.items():
            file.writestr(name, text)
    wheel = Wheel(tmp_path / "eng-1-py3-none-any.whl")
    yield wheel
    wheel.close()


def test_what_is_there_is_found(source) -> None:
    facts = record(GOOD, source)
    assert problems(GOOD, facts) == []
    assert facts["eng.core:Engine.generate"] == ["self", "prompt", "params", "*", "lora="]
    assert facts["eng.core:Engine.run"] == ["self", "a", "b=", "*rest"]


def test_what_is_missing_is_named(source) -> None:
    for use, message in BAD.items():
        told = problems([use], record([use], source))
        assert len(told) == 1 and message in told[0], (use, told)


def test_stand_ins_are_called_as_the_record_allows(source) -> None:
    recorded = Recorded(record(GOOD, source))

    @recorded.held("eng.core:Engine.generate")
    def generate(self, prompt, params, *, lora=None):
        return prompt

    assert generate(None, 1, params=2, lora=3) == 1
    for wrong in (lambda: generate(None, 1), lambda: generate(None, 1, 2, 3), lambda: generate(None, 1, 2, seed=3)):
        with pytest.raises(TypeError):
            wrong()
    options = recorded.struct("eng.core:Options")
    assert options(first=3).first == 3 and options().second is None
    with pytest.raises(TypeError, match=r"has no \['third'\]"):
        options(third=1)


def test_an_unchecked_version_is_read_where_it_is_installed(tmp_path: Path, monkeypatch) -> None:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    info = tmp_path / "eng-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: eng\nVersion: 2.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert in_process.installed_version("eng", GOOD, ("1.0",)) == "2.0"
    with pytest.raises(ConfigError, match=r"eng 2\.0 lacks.*Engine\.abort is missing.*Versions that have it: 1\.0"):
        in_process.installed_version("eng", tuple(BAD), ("1.0",))
    assert in_process.installed_version("eng", tuple(BAD), ("2.0",)) == "2.0"


def test_the_command_says_what_a_wheel_lacks(tmp_path: Path, monkeypatch, capsys) -> None:
    with zipfile.ZipFile(tmp_path / "eng.whl", "w") as file:
        for name, text in SOURCES.items():
            file.writestr(name, text)
    (tmp_path / "their_uses.py").write_text(
        "from plugrl_rollout_openai.surface import Use\nUSES = (Use('call', 'eng.core:Engine.abort'),)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["their_uses", str(tmp_path / "eng.whl")]) == 1
    assert "eng.core:Engine.abort is missing" in capsys.readouterr().out
    assert main(["their_uses", str(tmp_path / "eng.whl"), "--record"]) == 0
    assert '"eng.core:Engine.abort": null' in capsys.readouterr().out
    assert main([]) == 2
