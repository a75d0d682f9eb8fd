"""An image in the OCI layout, made of a folder: one layer, one file, no builder and no registry."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from pathlib import Path
from typing import Any

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_TYPE = "application/vnd.oci.image"


def write_archive(archive: Path, name: str, root: Path, config: dict[str, Any]) -> str:
    """Write the image ``name`` (with a tag) of the folder ``root`` and return its digest; ``config`` is that of the OCI image."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as tar:
        for folder, folders, files in os.walk(root):
            for entry in sorted([*folders, *files]):
                path = Path(folder, entry)
                tar.add(path, arcname=str(path.relative_to(root)), recursive=False, filter=_of_root)
    with layer.open("rb") as file:
        digest = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    machine = {"architecture": _MACHINES.get(platform.machine(), platform.machine()), "os": "linux"}
    made = {"created": "1970-01-01T00:00:00Z", "created_by": "dev.realnode"}
    settings = _json(
        {
            **machine,
            "created": made["created"],
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [digest]},
            # One entry a layer: builders refuse a base whose numbers differ.
            "history": [made],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}.manifest.v1+json",
            "config": {"mediaType": f"{_TYPE}.config.v1+json", "digest": _digest(settings), "size": len(settings)},
            "layers": [{"mediaType": f"{_TYPE}.layer.v1.tar", "digest": digest, "size": layer.stat().st_size}],
        }
    )
    notes = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    entry_of_index = {
        "mediaType": f"{_TYPE}.manifest.v1+json", "digest": _digest(manifest), "size": len(manifest), "platform": machine, "annotations": notes,
    }  # fmt: skip
    with tarfile.open(archive, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": [entry_of_index]}))
        for blob in (settings, manifest):
            _add(tar, _path(_digest(blob)), blob)
        tar.add(layer, arcname=_path(digest), filter=_of_root)
    layer.unlink()
    return _digest(manifest)


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _path(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")
