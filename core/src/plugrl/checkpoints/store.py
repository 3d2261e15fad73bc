"""The checkpoints of one run: written whole or not at all, found again, checked, and pruned.

``root/000060/`` holds ``pretrained_model/``, ``training_state/`` and ``manifest.json``; ``root/last`` points to the
newest. A step is written under a hidden name, listed in its manifest, synced and renamed: what has a step's name is
complete. One process at a time writes into a root. Writers that go on in the background announce it
(:mod:`plugrl.checkpoints.parts`); the step is then completed in the background too.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plugrl.checkpoints import parts
from plugrl.checkpoints.locate import locate
from plugrl.checkpoints.manifest import MANIFEST_NAME, Manifest, sync
from plugrl.checkpoints.pending import BackgroundCommit
from plugrl.errors import CheckpointError, one_of

LAST = "last"
RESUME_MODES = ("auto", "disable", LAST)
_TEMPORARY = ".writing-"
_REPLACED = ".replaced-"
_DELETED = ".deleted-"
SAVE_TIMEOUT_S = 1800.0
"""How long a save in the background may take."""
logger = logging.getLogger(__name__)


def step_name(step: int, total_steps: int = 0) -> str:
    """Return the folder of a step: six digits, or as many as the number of all steps has."""
    if step < 0:
        raise ValueError(f"A step is at least 0, got {step}.")
    return f"{step:0{max(6, len(str(total_steps)))}d}"


def verify(directory: str | Path) -> Manifest:
    """Check one checkpoint and return its manifest. Raises CheckpointError naming what is missing or altered.

    Files that the manifest does not list are no fault, since somebody may have added a note; a warning names them.
    """
    path = Path(directory)
    if not path.is_dir():
        raise CheckpointError(f"There is no checkpoint at {path}.")
    manifest = Manifest.load(path)
    _verify(path, manifest)
    return manifest


def _verify(path: Path, manifest: Manifest) -> None:
    manifest.verify(path)
    unlisted = manifest.unlisted(path)
    if unlisted:
        more = f" and {len(unlisted) - 5} more" if len(unlisted) > 5 else ""
        logger.warning(
            "%s holds files that its %s does not list, so that nothing vouches for their content: %s%s",
            path, MANIFEST_NAME, ", ".join(unlisted[:5]), more,
        )  # fmt: skip


class CheckpointStore:
    """The folder with the checkpoints of a run. One process writes it; the others are given the path.

    A relative ``root`` becomes absolute at once, so that every rank means the same place. ``max_to_keep`` counts what
    lies on disk, also from before a restart; None keeps all. Steps that ``keep_every`` divides are kept besides. What
    ``last`` points to and what was resumed from (:meth:`protect`) always stay. ``total_steps``: how long the run will
    be, for the width of names.
    """

    def __init__(
        self,
        root: str | Path,
        max_to_keep: int | None = None,
        keep_every: int | None = None,
        timeout_s: float = SAVE_TIMEOUT_S,
        total_steps: int = 0,
    ) -> None:
        for key, value in (("max_ckpt_to_keep", max_to_keep), ("keep_every", keep_every)):
            if value is not None and value < 1:
                raise CheckpointError(f"trainer.{key}: must be at least 1, not {value}.")
        self.root = Path(root).absolute()
        self.max_to_keep = max_to_keep
        self.keep_every = keep_every
        self.timeout_s = timeout_s
        self.total_steps = total_steps
        self._protected: set[Path] = set()
        self._background: BackgroundCommit | None = None
        self._removers: list[threading.Thread] = []

    # ----------------------------------------------------------------- writing
    @contextmanager
    def write(self, step: int) -> Iterator[Path]:
        """Yield an empty folder for ``step``; when the block ends well it becomes the newest checkpoint.

        A block that raises leaves nothing behind and ``last`` as it was. When writers announced that they go on, the
        step is completed in the background: see :meth:`check` and :meth:`finish`. Waits for the step before.
        Raises CheckpointError when the file system does not take it, or when the step before failed.
        """
        self.finish()
        with self._plain_errors(step):
            yield from self._write(step)

    def _write(self, step: int) -> Iterator[Path]:
        name = self.path_of(step).name
        self.root.mkdir(parents=True, exist_ok=True)
        self._tidy()
        folder = self.root / f"{_TEMPORARY}{name}-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if parts.pending(folder):
            self._background = BackgroundCommit(step, lambda: self._commit(folder, step))
        else:
            self._commit(folder, step)

    def _commit(self, folder: Path, step: int) -> None:
        name = self.path_of(step).name
        try:
            with self._plain_errors(step):
                parts.wait_for_all(folder, timeout_s=self.timeout_s)
                known, ties = parts.collect(folder)
                sequence = self._next_sequence()
                manifest = Manifest.of(folder, step=step, sequence=sequence, known=known, ties=ties)
                sync(folder, known)
                manifest.save(folder)
                sync_folder(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        with self._plain_errors(step):
            self._publish(folder, name)
            self._prune(keep=name)

    @contextmanager
    def _plain_errors(self, step: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"The checkpoint of step {step} could not be written to {self.root}: {error.strerror or error}. "
                "Earlier ones are as they were."
            ) from error

    def check(self) -> None:
        """Raise CheckpointError, once, if a step that was completed in the background failed. Does not wait."""
        if self._background is not None and not self._background.running:
            done, self._background = self._background, None
            done.raise_error()

    def finish(self) -> None:
        """Wait until the step that is completed in the background is there, and pruned ones are gone.

        Raises CheckpointError as :meth:`check`.
        """
        if self._background is not None:
            try:
                self._background.wait(self.timeout_s)
            finally:
                self._background = None
        while self._removers:
            self._removers.pop().join(self.timeout_s)

    def protect(self, path: str | Path) -> None:
        """Never prune this checkpoint: the run goes on from it."""
        self._protected.add(Path(path).resolve())

    def _publish(self, folder: Path, name: str) -> None:
        target = self.root / name
        replaced = self.root / f"{_REPLACED}{name}"
        if target.exists():
            os.rename(target, replaced)
        os.rename(folder, target)
        self._point_last_to(name)
        sync_folder(self.root)
        shutil.rmtree(replaced, ignore_errors=True)

    def _point_last_to(self, name: str) -> None:
        """Replace the relative link in one step; a reader sees the old one or the new one."""
        link = self.root / f".{LAST}-{uuid.uuid4().hex[:8]}"
        os.symlink(name, link, target_is_directory=True)
        os.replace(link, self.root / LAST)

    def _next_sequence(self) -> int:
        return max((manifest.sequence for manifest in self._manifests().values()), default=0) + 1

    def _prune(self, keep: str) -> None:
        if self.max_to_keep is None:
            return
        manifests = self._manifests()
        newest_first = sorted(manifests, key=lambda path: -manifests[path].sequence)
        for path in newest_first[self.max_to_keep :]:
            kept = self.keep_every is not None and manifests[path].step % self.keep_every == 0
            if path.name != keep and not kept and path.resolve() not in self._protected:
                self._delete(path)

    def _delete(self, path: Path) -> None:
        """Take the name away before the content: an interrupted removal leaves no half checkpoint."""
        doomed = self.root / f"{_DELETED}{path.name}-{uuid.uuid4().hex[:8]}"
        os.rename(path, doomed)
        # Freeing gigabytes takes a disk a while, for which training need not wait; the interpreter's end does.
        remover = threading.Thread(target=shutil.rmtree, args=(doomed,), kwargs={"ignore_errors": True})
        remover.start()
        self._removers.append(remover)

    def _tidy(self) -> None:
        """Finish what an earlier process could not: put a replaced step back, remove unfinished and deleted ones."""
        self._restore_replaced()
        for path in sorted(self.root.iterdir()):
            if path.name.startswith((_TEMPORARY, _DELETED, _REPLACED)):
                logger.warning("Removing %s, which an interrupted save left behind.", path)
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.startswith(f".{LAST}-"):
                path.unlink()

    def _restore_replaced(self) -> None:
        """Put back a step that was moved aside for a new version of it that never took its place."""
        for path in sorted(self.root.glob(f"{_REPLACED}*")):
            target = self.root / path.name.removeprefix(_REPLACED)
            if not target.exists():
                os.rename(path, target)

    # ----------------------------------------------------------------- reading
    def steps(self) -> list[int]:
        """Return the steps with a manifest on disk, in ascending order; their content is not checked."""
        return sorted(manifest.step for manifest in self._manifests().values())

    def path_of(self, step: int) -> Path:
        """Return where the checkpoint of ``step`` lies or will lie."""
        lying = [path for path in _step_folders(self.root) if int(path.name) == step]
        return lying[0] if lying else self.root / step_name(step, self.total_steps)

    def resolve(self, what: str | Path) -> Path | None:
        """Find a checkpoint and verify it.

        ``"auto"``: the newest that is whole, None when there is none; others are reported and skipped.
        ``"disable"``: None. ``"last"``: what ``last`` points to. Anything else: a step's number, or a path
        in or around a checkpoint, see :func:`plugrl.checkpoints.locate.locate`.
        Raises CheckpointError when what was named is missing, incomplete or altered.
        """
        if what == "disable":
            return None
        if what == "auto":
            self._restore_replaced()
            return self._newest()
        path = self.root / LAST if what == LAST else self._named(what)
        if not path.exists():
            modes = "auto, disable, last, a step or a path"
            raise CheckpointError(
                f"trainer.resume: there is no checkpoint at {path}. Steps in {self.root}: "
                f"{one_of(map(str, self.steps()))}. Allowed: {modes}."
            )
        path = locate(path)
        if not (path / MANIFEST_NAME).exists() and _step_folders(path):
            newest = CheckpointStore(path)._newest()
            if newest is None:
                raise CheckpointError(f"trainer.resume: no checkpoint in {path} is whole.")
            return newest
        verify(path)
        return path

    def _named(self, what: str | Path) -> Path:
        text = str(what)
        return self.path_of(int(text)) if text.isdigit() and not Path(text).exists() else Path(text).absolute()

    def _newest(self) -> Path | None:
        manifests = self._manifests()
        for path in _step_folders(self.root):
            if path not in manifests:
                logger.warning("Skipping %s: it has no readable %s.", path, MANIFEST_NAME)
        for path in sorted(manifests, key=lambda path: -manifests[path].sequence):
            try:
                _verify(path, manifests[path])
            except CheckpointError as error:
                logger.warning("Skipping an incomplete checkpoint: %s", error)
                continue
            return path
        return None

    def _manifests(self) -> dict[Path, Manifest]:
        found = {}
        for path in _step_folders(self.root):
            try:
                found[path] = Manifest.load(path)
            except CheckpointError:
                continue  # reported where it matters, see _newest
        return found


def newest_step(root: Path) -> Path | None:
    """Return the step last written into a folder of steps, its content unchecked; None when it holds no steps."""
    manifests = CheckpointStore(root)._manifests() if root.is_dir() else {}
    return max(manifests, key=lambda path: manifests[path].sequence, default=None)


def sync_folder(path: Path) -> None:
    """Force the entries of one folder to disk, so that a rename survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _step_folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.name.isdigit() and path.is_dir())
