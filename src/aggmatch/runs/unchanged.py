"""Checks before a run continues: its configuration and its split are those that its checkpoint knows."""

from collections.abc import Mapping
from typing import Any

from aggmatch.config import flatten
from aggmatch.data import is_own_images
from aggmatch.errors import AggMatchError
from aggmatch.runs.folder import RunFolder
from aggmatch.storage.files import digest_of
from aggmatch.validate import read_json


def check_config(folder: RunFolder, known: Mapping[str, Any]) -> None:
    """Raise an `AggMatchError` if `config.json` has other settings than those that a checkpoint knows."""
    before, stored = flatten(known), flatten(folder.read_config(intact=False))
    changed = {key: (old, stored[key]) for key, old in before.items() if key in stored and stored[key] != old}
    advice = f"Its newest checkpoint has the old values. Restore {folder.config}, or choose another folder."
    refuse_changes(folder, changed, advice)


def check_split(folder: RunFolder, known: Mapping[str, str]) -> None:
    """Raise an `AggMatchError` if `split.json` is not the split whose digests a checkpoint knows."""
    stored = read_json(folder.split, dict[str, Any])
    changed = [name for name, digest in known.items() if digest_of(stored.get(name)) != digest]
    if changed:
        raise AggMatchError(
            f"Cannot resume {folder.path}: {', '.join(changed)} in {folder.split} changed since the last checkpoint. "
            f"Restore the file, or start a new run in another folder."
        )


def refuse_changes(folder: RunFolder, changed: Mapping[str, tuple[Any, Any]], advice: str) -> None:
    """Raise an `AggMatchError` that names changed settings, unless only own images or their table have moved.

    changed: dotted key → (before, now). The split checks whether images and labels are the same.
    """
    moved = {
        "data.name": all(map(is_own_images, map(str, changed.get("data.name", ())))),
        "data.labels_file": all(changed.get("data.labels_file", ())),
    }
    listed = [f"{key} was {old!r}, now {new!r}" for key, (old, new) in changed.items() if not moved.get(key)]
    if listed:
        raise AggMatchError(f"Cannot resume {folder.path}: {'; '.join(listed)}. {advice}")
