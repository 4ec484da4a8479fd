"""Where a preparation stands, so that a killed one goes on: DIR/.unfinished/state.json, saved after each safe step."""

import hashlib
import json
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.data import manifest
from bench.data.schema import Schema
from bench.data.splits import NAMES
from bench.data.stream import Cursor
from bench.files import write_text

FORMAT = 1  # raise it when a change makes half-finished work of the old code useless


@dataclass
class State:
    """Everything that a pass has settled up to its cursor. Files that it does not name are leftovers."""

    key: str
    lines: list[int] | None = None  # of each file
    counting: Cursor = field(default_factory=Cursor)
    counted: bool = False
    runs: list[list[str]] = field(default_factory=list)  # of each sparse column
    train_rows: int = 0
    train_positives: int = 0
    vocabulary: list[dict] | None = None
    encoding: Cursor = field(default_factory=Cursor)
    shards: dict[str, list[dict]] = field(default_factory=lambda: {name: [] for name in NAMES})
    unseen: dict[str, list[int]] = field(default_factory=dict)  # split -> rows with a rare id, of each sparse column
    bad: dict[str, int] = field(default_factory=dict)
    padded: int = 0

    def save(self, out: Path) -> None:
        """Write the state atomically."""
        write_text(_file(out), json.dumps(asdict(self)))


def begin(out: Path, schema: Schema, options: dict, files: list[Path]) -> State:
    """The state to go on from: that of an earlier run with the same options, sources and format, or a new one.

    A new one removes what an earlier data set left in the folder.
    """
    sources = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.sha256(json.dumps([FORMAT, asdict(schema), options, sources]).encode()).hexdigest()
    if _file(out).is_file() and not (out / manifest.NAME).exists():
        try:
            saved = json.loads(_file(out).read_text())
            if saved["key"] == key:
                saved["counting"], saved["encoding"] = Cursor(**saved["counting"]), Cursor(**saved["encoding"])
                state = State(**saved)
                print(f"going on with the unfinished preparation in {out}", file=sys.stderr)
                return state
        except (ValueError, KeyError, TypeError):
            pass
        print(f"{out} holds an unfinished preparation of other rows or options: starting afresh", file=sys.stderr)
    (out / manifest.NAME).unlink(missing_ok=True)  # first: from here on the data set is not complete
    for name in NAMES:
        for shard in out.glob(f"{name}-*.safetensors"):
            shard.unlink()
    for folder in (work_folder(out), out / "vocabulary"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    return State(key, runs=[[] for _ in schema.sparse])


def work_folder(out: Path) -> Path:
    """Where intermediate files of a preparation are."""
    return out / ".unfinished"


def _file(out: Path) -> Path:
    return work_folder(out) / "state.json"
