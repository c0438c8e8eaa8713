"""Checkpoints that survive a kill at any moment: written atomically, verified by a digest, the last two kept.

A checkpoint is one safetensors file whose name ends in a digest of its bytes, as in
`step-00000400-5c106cde1f0a6b3d.safetensors`. The digest of a corrupt file does not match its name. Models and snapshots
have fixed names, so every file also holds a digest of itself among its facts. Loading a file never runs code from it.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from aggmatch.errors import AggMatchError
from aggmatch.storage.files import SEAL, digest, read_bytes, write_atomically

KEPT = 2
"""Number of checkpoints that a run keeps."""
NAME = re.compile(r"step-\d+-[0-9a-f]{16}\.safetensors")
BLANK = "0" * 16
"""Stands for the digest of a file until the rest of the file is known."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by dotted name, such as `online.backbone.weight`, and facts (counters, names) that JSON can hold."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    def section(self, prefix: str) -> dict[str, Tensor]:
        """Tensors whose names start with `prefix.`, by the rest of their names."""
        start = prefix + "."
        return {name.removeprefix(start): tensor for name, tensor in self.tensors.items() if name.startswith(start)}


def pack(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as the bytes of a safetensors file; the facts and a digest of the file are its metadata."""
    tensors: dict[str, Tensor] = {}
    stored: set[int] = set()
    for name, tensor in checkpoint.tensors.items():
        plain = tensor.detach().cpu().contiguous()
        place = plain.untyped_storage().data_ptr()
        tensors[name] = plain.clone() if place in stored else plain  # the format cannot hold shared weights
        stored.add(place)
    data = save_tensors(tensors, metadata={"facts": json.dumps({**checkpoint.facts, SEAL: BLANK})})
    header, _, end = read_header(data)
    seal = own_digest(header, data[end:])
    blank, filled = (json.dumps(json.dumps({SEAL: text}))[2:-2].encode() for text in (BLANK, seal))
    return data[:end].replace(blank, filled) + data[end:]


def unpack(data: bytes) -> Checkpoint:
    """Return the checkpoint in the bytes of a safetensors file; raise a ValueError if they are not one, or damaged.

    Files of version 0.1 have no digest of themselves, so nothing is compared.
    """
    try:
        tensors = load_tensors(data)
        header, seal, end = read_header(data)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a checkpoint ({error})") from None
    if seal is not None and own_digest(header, data[end:]) != seal:
        raise ValueError("it is corrupt: its digest does not match its content")
    return Checkpoint(tensors, header["facts"])


def read_header(data: bytes) -> tuple[dict[str, Any], str | None, int]:
    """Return the header of a safetensors file with its facts, the file's own digest, and the position of its tensors.

    The digest is taken out of the facts: it is the digest of everything else.
    """
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    facts = json.loads(header.pop("__metadata__")["facts"])
    seal = facts.pop(SEAL, None)
    return {"tensors": header, "facts": facts}, seal, end


def own_digest(header: Mapping[str, Any], values: bytes) -> str:
    """The digest of a file's header and of the bytes of its tensors."""
    hashed = hashlib.blake2b(json.dumps(header, sort_keys=True).encode(), digest_size=8)
    hashed.update(values)
    return hashed.hexdigest()


def save(folder: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, delete all but the last two, and return its file."""
    folder.mkdir(exist_ok=True)
    data = pack(checkpoint)
    path = folder / f"step-{step:08d}-{digest(data)}.safetensors"
    write_atomically(path, data)
    for old in found(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    for part in folder.glob(".step-*"):  # a kill during a write leaves them
        part.unlink(missing_ok=True)
    return path


def found(folder: Path) -> list[Path]:
    """Files of the checkpoints in a folder, newest first."""
    paths = [path for path in folder.glob("step-*.safetensors") if NAME.fullmatch(path.name)]
    return sorted(paths, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """The step after which a checkpoint was written, from its file name."""
    return int(path.name.split("-")[1])


def read(path: Path, advice: str = "") -> Checkpoint:
    """Read a file of tensors and facts; raise an `AggMatchError` if it cannot be read or is corrupt, with advice."""
    try:
        return unpack(read_bytes(path))
    except ValueError as error:
        raise AggMatchError(f"Cannot read {path}: {error}. {advice}".rstrip()) from None


def verified(path: Path) -> Checkpoint:
    """Return the checkpoint in a file; raise a ValueError if its digest does not match its name, or it is damaged."""
    data = path.read_bytes()
    if digest(data) != path.stem.rpartition("-")[2]:
        raise ValueError("its digest does not match its name")
    return unpack(data)


def load_newest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that is not corrupt, or None if the folder has no checkpoint.

    Warns about each corrupt one. Raises an `AggMatchError` if all are corrupt: a silent restart would lose the run.
    """
    paths = found(folder)
    unreadable = None
    for path in paths:
        try:
            return verified(path)
        except OSError as error:
            unreadable = error
            warnings.warn(f"Checkpoint {path} cannot be read: {error.strerror}.", stacklevel=2)
        except ValueError as error:
            warnings.warn(f"Checkpoint {path} is corrupt: {error}.", stacklevel=2)
    if unreadable is not None:
        raise AggMatchError(
            f"No checkpoint in {folder} can be read ({unreadable.strerror}). Make them readable and resume again."
        )
    if paths:
        raise AggMatchError(f"All checkpoints in {folder} are corrupt. Delete {folder.parent} and start its run again.")
    return None
