"""Where a preparation stands, so that a killed one goes on: DIR/.unfinished/state.json, saved after each safe step."""

import hashlib
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.data import folder, manifest
from bench.data.schema import Schema
from bench.data.splits import NAMES
from bench.data.stream import Cursor
from bench.files import write_text

FORMAT = 2  # raise it when a change makes half-finished work of the old code useless


@dataclass
class State:
    """Everything that a pass has settled up to its cursor. Files that it does not name are leftovers."""

    key: str
    lines: list[int] = field(default_factory=list)  # of each file that is counted
    counting: Cursor = field(default_factory=Cursor)
    counted: bool = False
    runs: list[list[str]] = field(default_factory=list)  # of each sparse column, in the work folder
    train_rows: int = 0
    train_positives: int = 0
    vocabulary: list[dict] | None = None
    rare: list[str] = field(default_factory=list)  # of each sparse column, keys below the threshold, in the work folder
    encoding: Cursor = field(default_factory=Cursor)
    shards: dict[str, list[dict]] = field(default_factory=lambda: {name: [] for name in NAMES})
    rare_rows: dict[str, list[int]] = field(default_factory=dict)  # split -> rows with a rare id, of each sparse column
    unseen_rows: dict[str, list[int]] = field(default_factory=dict)  # of these, rows whose value is not in training
    bad: dict[str, int] = field(default_factory=dict)
    padded: int = 0

    def save(self, out: Path) -> None:
        """Write the state atomically."""
        write_text(folder.state_file(out), json.dumps(asdict(self)))

    def files(self, out: Path) -> list[Path]:
        """The files that the work goes on from."""
        if self.vocabulary is None:
            made = [folder.work(out) / run for runs in self.runs for run in runs]
        else:
            made = [out / part["file"] for part in self.vocabulary] + [folder.work(out) / name for name in self.rare]
        return made + [out / shard["file"] for shards in self.shards.values() for shard in shards]


def key(schema: Schema, options: dict, files: list[Path]) -> str:
    """What tells one preparation from another: options, and the name, size and time of each source."""
    sources = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([FORMAT, asdict(schema), options, sources]).encode()).hexdigest()


def unfinished(out: Path, key: str) -> State | None:
    """The state of an earlier run with this key that did not end; None where there is none to go on from."""
    if not folder.state_file(out).is_file() or (out / manifest.NAME).exists():
        return None
    try:
        saved = json.loads(folder.state_file(out).read_text())
        saved["counting"], saved["encoding"] = Cursor(**saved["counting"]), Cursor(**saved["encoding"])
        state = State(**saved)
    except (ValueError, KeyError, TypeError):
        state = None
    if state is None or state.key != key:
        print(f"{out} holds an unfinished preparation of other rows or options: starting afresh", file=sys.stderr)
        return None
    lost = [file for file in state.files(out) if not file.is_file()]
    if lost:
        print(f"{lost[0]} of the unfinished preparation is gone: starting afresh", file=sys.stderr)
        return None
    print(f"going on with the unfinished preparation in {out}", file=sys.stderr)
    return state
