"""Checkpoints: weights in safetensors, optimiser state, a manifest with sizes and sha256.

`<root>/<fingerprint>/step-N/` holds model.safetensors, optimizer.pt (absent in a final, slimmed checkpoint)
and manifest.json. The root is a local folder, NFS, or an s3:// or gs:// address (pyarrow file systems). A
checkpoint is written under a temporary name and renamed; on object stores, which rename nothing, the
manifest is written last. Whatever fails its manifest is damaged: it is reported and the one before it used.
No pickle is ever loaded.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import pickle
import re
import uuid
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
from pyarrow import fs

logger = logging.getLogger(__name__)

MODEL, OPTIMIZER, MANIFEST = "model.safetensors", "optimizer.pt", "manifest.json"
_UNFINISHED = ".tmp-"
# Unreadable, not what the manifest says, a manifest of another shape, or an optimizer.pt that holds a pickle.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, pickle.UnpicklingError)


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds, read and verified."""

    step: int
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any] | None
    meta: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one cell, newest last.

    uri: folder of the cell, a local path or an address that pyarrow.fs.FileSystem.from_uri knows.
    """

    def __init__(self, uri: str):
        self.uri = uri
        self._fs, self._root = fs.FileSystem.from_uri(uri)
        self._local = isinstance(self._fs, fs.LocalFileSystem)

    def steps(self) -> list[int]:
        """Steps of the checkpoints there, ascending; damaged ones included."""
        entries = self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        names = (re.fullmatch(r"step-(\d+)", entry.base_name) for entry in entries)
        return sorted(int(match[1]) for match in names if match)

    def save(
        self,
        step: int,
        weights: dict[str, torch.Tensor],
        optimizer: dict[str, Any] | None = None,
        meta: dict[str, Any] | None = None,
        keep: int = 1,
    ) -> str:
        """Write a checkpoint, then drop all but the newest `keep`. Returns its address."""
        self._drop_unfinished()
        final = f"{self._root}/step-{step}"
        folder = f"{self._root}/{_UNFINISHED}{uuid.uuid4().hex}" if self._local else final
        self._fs.create_dir(folder)
        contiguous = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
        files = {MODEL: safetensors.torch.save(contiguous)}
        if optimizer is not None:
            buffer = io.BytesIO()
            torch.save(optimizer, buffer)
            files[OPTIMIZER] = buffer.getvalue()
        manifest = {
            "step": step,
            "meta": meta or {},
            "files": {
                name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                for name, data in files.items()
            },
        }
        files[MANIFEST] = json.dumps(manifest, indent=1).encode()
        for name, data in files.items():  # the manifest comes last
            with self._fs.open_output_stream(f"{folder}/{name}") as out:
                out.write(data)
        if self._local:
            if step in self.steps():
                self._fs.delete_dir(final)
            self._fs.move(folder, final)
        self.prune(step, keep)
        return f"{self.uri}/step-{step}"

    def prune(self, step: int, keep: int = 1) -> None:
        """Drop all but the newest `keep` up to `step`, and those after it."""
        older = [s for s in self.steps() if s <= step]
        newer = [s for s in self.steps() if s > step]  # damaged, or training would have gone on from there
        for dropped in older[:-keep] + newer:
            self._fs.delete_dir(f"{self._root}/step-{dropped}")

    def _drop_unfinished(self) -> None:
        """Remove what a writer that was killed, or met a full disk, has left."""
        for entry in self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True)):
            if entry.base_name.startswith(_UNFINISHED):
                self._fs.delete_dir(entry.path)

    def load(self, device: str = "cpu") -> Checkpoint | None:
        """The newest intact checkpoint, or None. Damaged ones are named in a warning and passed over."""
        for step in reversed(self.steps()):
            try:
                return self._read(step, device)
            except _DAMAGE as error:
                logger.warning(
                    "checkpoint %s/step-%d is damaged (%s); trying the one before", self.uri, step, error
                )
        return None

    def set_aside(self) -> None:
        """Move checkpoints that are there out of the way: nothing that they were written for is left.

        On object stores, which rename nothing, they are deleted.
        """
        if not self.steps():
            return
        if not self._local:
            self.delete()
            return
        aside = f"{self._root}-{uuid.uuid4().hex[:8]}"
        self._fs.move(self._root, aside)
        logger.warning("checkpoints of a run that is gone from the ledger are set aside as %s", aside)

    def delete(self) -> None:
        """Remove every checkpoint of the cell."""
        if self._fs.get_file_info(self._root).type != fs.FileType.NotFound:
            self._fs.delete_dir(self._root)

    def _read(self, step: int, device: str) -> Checkpoint:
        folder = f"{self._root}/step-{step}"
        manifest = json.loads(self._bytes(f"{folder}/{MANIFEST}"))
        data = {}
        for name, expected in manifest["files"].items():
            data[name] = self._bytes(f"{folder}/{name}")
            if hashlib.sha256(data[name]).hexdigest() != expected["sha256"]:
                raise ValueError(f"{name} does not match its sha256 in {MANIFEST}")
        if manifest["step"] != step:
            raise ValueError(f"{MANIFEST} is of step {manifest['step']}")
        weights = {name: t.to(device) for name, t in safetensors.torch.load(data[MODEL]).items()}
        optimizer = None
        if OPTIMIZER in data:
            optimizer = torch.load(io.BytesIO(data[OPTIMIZER]), map_location=device, weights_only=True)
        return Checkpoint(manifest["step"], weights, optimizer, manifest["meta"])

    def _bytes(self, path: str) -> bytes:
        with self._fs.open_input_stream(path) as stream:
            return bytes(stream.read())
