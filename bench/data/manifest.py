"""manifest.json of a prepared data set: written last, so its presence means that the data set is complete."""

import hashlib
import json
from functools import cache
from pathlib import Path

import jsonschema

from bench.data.splits import NAMES
from bench.data.vocabulary import table_rows
from bench.errors import UserError
from bench.files import write_text

NAME = "manifest.json"


def write(folder: Path, manifest: dict) -> None:
    """Write DIR/manifest.json atomically."""
    write_text(folder / NAME, json.dumps(manifest, indent=1, allow_nan=False) + "\n")


def read(folder: Path) -> dict:
    """Read a data set's manifest and check that it is consistent in itself.

    Raises:
        UserError: no manifest, not JSON, a field that does not fit the schema, or numbers that contradict each other.
    """
    path = folder / NAME
    try:
        manifest = json.loads(path.read_text())
    except OSError:
        raise UserError(
            f"no {NAME} in {folder}: not a prepared data set, or its preparation did not end; "
            "run python -m bench.data.prepare (it goes on where it was)"
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): prepare the data set again") from None
    error = jsonschema.exceptions.best_match(_validator().iter_errors(manifest))
    if error is not None:
        field = ".".join(str(part) for part in error.absolute_path) or "the whole"
        raise UserError(f"{path} does not fit its schema at {field}: {error.message[:300]}; prepare the data set again")
    for fault in _contradictions(manifest):
        raise UserError(f"{path}: {fault}; prepare the data set again")
    return manifest


def split_hash(splits: dict) -> str:
    """sha256 over the shards' sha256 in order: of rows, splits, ids (so threshold and cap) and the size of shards."""
    digest = hashlib.sha256()
    for name in NAMES:
        for shard in splits[name]["shards"]:
            digest.update(f"{name} {shard['sha256']}\n".encode())
    return digest.hexdigest()


def _contradictions(manifest: dict):
    sparse = manifest["columns"]["sparse"]
    names = [manifest["columns"]["label"], *manifest["columns"]["dense"], *sparse]
    if len(set(names)) != len(names):
        yield "columns names a column twice"
    for field in ("cardinalities", "vocabulary"):
        if len(manifest[field]) != len(sparse):
            yield f"{field} has {len(manifest[field])} entries for {len(sparse)} sparse columns"
    for name, rows, part in zip(sparse, manifest["cardinalities"], manifest["vocabulary"], strict=False):
        if part["column"] != name:
            yield f"vocabulary has column {part['column']} where columns has {name}"
        if rows != table_rows(part["kept"], part["cap"]):
            yield f"cardinality {rows} of column {name} does not follow from its {part['kept']} kept keys and the cap"
    files = [shard["file"] for name in NAMES for shard in manifest["splits"][name]["shards"]]
    if len(set(files)) != len(files):
        yield "splits names a shard twice"
    for name in NAMES:
        split = manifest["splits"][name]
        for shard in split["shards"]:
            if not shard["file"].startswith(f"{name}-"):
                yield f"split {name} names shard {shard['file']} of another split"
        for field in ("rows", "positives"):
            if split[field] != sum(shard[field] for shard in split["shards"]):
                yield f"{field} of split {name} is not the sum over its shards"
    if manifest["split_hash"] != split_hash(manifest["splits"]):
        yield "split_hash is not the hash over the shards' sha256"


@cache
def _validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(Path(__file__).with_name("manifest.schema.json").read_text())
    return jsonschema.Draft202012Validator(schema)
