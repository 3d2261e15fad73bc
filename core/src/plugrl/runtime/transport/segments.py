"""Shared memory for payloads: the sender's arenas, and the view that others have of them.

Arenas are anonymous files (``memfd``) whose descriptors travel over the Unix socket. They have no name that could be
left behind: the kernel frees them with the last process that holds them, however it ends. They do not count against
the size of ``/dev/shm``. An arena is mapped once by either side and used again: fresh pages cost more than the copy.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
from bisect import insort
from dataclasses import dataclass, field

ARENA_BYTES = 32 * 2**20
IDLE_S = 2.0
"""Arenas without a message are given back after this time."""
_GRAIN = 4096

ArenaKey = tuple[str, int]
"""The uid of the owner and a number."""


class NoMemory(Exception):
    """Shared memory is not to be had; the text says why."""


@dataclass(frozen=True)
class Block:
    """A piece of an arena that holds one payload."""

    arena: Arena
    offset: int
    size: int
    number: int

    @property
    def view(self) -> memoryview:
        """The bytes of the payload."""
        return memoryview(self.arena.memory)[self.offset : self.offset + self.size]


@dataclass
class Arena:
    """One piece of shared memory, with the gaps between its blocks as ``[(offset, size)]`` in order."""

    key: ArenaKey
    size: int
    descriptor: int
    memory: mmap.mmap
    gaps: list[tuple[int, int]] = field(default_factory=list)
    blocks: int = 0
    retired: bool = False
    written: int = 0
    idle_since: float = 0.0

    def take(self, size: int) -> int | None:
        """Return the offset of a gap that was cut down by ``size``, None when there is none."""
        for index, (offset, room) in enumerate(self.gaps):
            if room >= size:
                if room == size:
                    del self.gaps[index]
                else:
                    self.gaps[index] = (offset + size, room - size)
                return offset
        return None

    def give_back(self, offset: int, size: int) -> None:
        """Make a gap of a block, joined with those beside it."""
        insort(self.gaps, (offset, size))
        joined: list[tuple[int, int]] = []
        for start, length in self.gaps:
            if joined and joined[-1][0] + joined[-1][1] == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + length)
            else:
                joined.append((start, length))
        self.gaps = joined


class ArenaPool:
    """The arenas of one process, ``limit`` bytes in all at most. Safe to use from several threads."""

    def __init__(self, uid: str, limit: int) -> None:
        self._uid = uid
        self._limit = limit
        self._mutex = threading.Lock()
        self._arenas: dict[int, Arena] = {}
        self._blocks: dict[int, Block] = {}
        self._given_up: list[Arena] = []
        self._next = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of shared memory that this process holds for payloads."""
        with self._mutex:
            return self._held()

    def _held(self) -> int:
        return sum(arena.size for arena in self._arenas.values())

    @property
    def held_blocks(self) -> int:
        """Payloads on their way, or in use by who received them."""
        return len(self._blocks)

    def allocate(self, size: int) -> Block:
        """Return room for a payload. Raises NoMemory."""
        grains = max(1, -(-size // _GRAIN)) * _GRAIN
        with self._mutex:
            # The fullest first: it leaves the larger gaps for the larger payloads.
            for arena in sorted(self._arenas.values(), key=lambda arena: sum(room for _, room in arena.gaps)):
                offset = None if arena.retired else arena.take(grains)
                if offset is not None:
                    break
            else:
                arena = self._open(grains)
                offset = arena.take(grains)
                assert offset is not None
            try:
                _reserve(arena, offset + grains)
            except NoMemory:
                arena.give_back(offset, grains)
                raise
            self._next += 1
            arena.blocks += 1
            block = Block(arena, offset, size, self._next)
            self._blocks[block.number] = block
            return block

    def free(self, number: int, *, retire: bool = False) -> None:
        """Take a block back. With ``retire`` nothing is put into its arena again: somebody may still look at it."""
        with self._mutex:
            block = self._blocks.pop(number, None)
            if block is None:
                return
            arena = block.arena
            arena.blocks -= 1
            arena.retired |= retire
            arena.give_back(block.offset, max(1, -(-block.size // _GRAIN)) * _GRAIN)
            arena.idle_since = time.monotonic()

    def trim(self, idle_s: float = IDLE_S) -> list[Arena]:
        """Give up the arenas that have been without a block for that long, and return them."""
        with self._mutex:
            self._trim(idle_s)
            gone, self._given_up = self._given_up, []
            return gone

    def _trim(self, idle_s: float) -> None:
        now = time.monotonic()
        for arena in list(self._arenas.values()):
            if not arena.blocks and (arena.retired or now - arena.idle_since >= idle_s):
                del self._arenas[arena.key[1]]
                _close(arena)
                self._given_up.append(arena)

    def close(self) -> None:
        """Give up everything; those who received payloads keep them."""
        with self._mutex:
            for arena in self._arenas.values():
                _close(arena)
            self._arenas.clear()
            self._blocks.clear()

    def _open(self, grains: int) -> Arena:
        size = max(ARENA_BYTES, -(-grains // 2**21) * 2**21)
        held = self._held()
        if held + size > self._limit:
            self._trim(0.0)
            held = self._held()
        if held + size > self._limit:
            raise NoMemory(f"{held >> 20} MiB of at most {self._limit >> 20} MiB are on their way already")
        self._next += 1
        try:
            descriptor = anonymous_file(size)
            try:
                memory = mmap.mmap(descriptor, size)
            except BaseException:
                os.close(descriptor)
                raise
        except (OSError, ValueError) as error:
            raise NoMemory(f"{size >> 20} MiB of shared memory are not to be had: {error}") from error
        arena = Arena((self._uid, self._next), size, descriptor, memory, [(0, size)], idle_since=time.monotonic())
        self._arenas[self._next] = arena
        return arena


class ForeignArena:
    """Another process' arena: its descriptor, mapped when it is first looked at."""

    def __init__(self, key: ArenaKey, size: int, descriptor: int) -> None:
        self.key = key
        self.size = size
        self.descriptor = descriptor
        self._memory: mmap.mmap | None = None

    def view(self, offset: int, size: int) -> memoryview:
        """Return bytes of it; they stay mapped as long as the view, or a tensor made of it, lives."""
        if self._memory is None:
            self._memory = mmap.mmap(self.descriptor, self.size)
        return memoryview(self._memory)[offset : offset + size]

    def __del__(self) -> None:
        """Give up the descriptor; views that are in use stay valid."""
        os.close(self.descriptor)


def anonymous_file(size: int) -> int:
    """Return the descriptor of a file without a name, in memory where the system has that."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("plugrl", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _reserve(arena: Arena, end: int) -> None:
    """Make sure that the bytes before ``end`` can be written: to write where no memory is left kills the process."""
    if end <= arena.written or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(arena.descriptor, arena.written, end - arena.written)
    except OSError as error:
        raise NoMemory(f"shared memory is full: {error}") from error
    arena.written = end


def _close(arena: Arena) -> None:
    os.close(arena.descriptor)
    try:
        arena.memory.close()
    except BufferError:
        pass  # A view of this process keeps it mapped until it dies.
