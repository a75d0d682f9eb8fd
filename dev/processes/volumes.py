"""The volumes of a pod as folders of this machine, kept up to date as a kubelet keeps them.

The files of a ConfigMap, a Secret or a projection change all at once: they lie in a folder with the time in its name, ``..data`` is a
link to the newest, and the names that a container reads are links through it. Who watches a mounted file sees what it would in a cluster.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from dev.processes.environment import ConfigError, Lookup, field

Json = Mapping[str, Any]

Token = Callable[[Json, Json], Awaitable[str]]
"""``(pod, source)`` → a token of the pod's service account as the source asks for it."""

_KEPT = ("configMap", "secret", "projected", "downwardAPI")


class Volumes:
    """The volumes of one pod."""

    def __init__(self, pod: Json, folder: Path, lookup: Lookup, token: Token) -> None:
        """Keep them below ``folder``."""
        self._pod = pod
        self._folder = folder
        self._lookup = lookup
        self._token = token
        self._written: dict[str, dict[str, str]] = {}
        self._tokens: dict[str, str] = {}

    async def refresh(self, pod: Json) -> None:
        """Make what is missing, and bring up to date what has changed; raises ConfigError if a volume can't be had."""
        self._pod = pod
        for volume in pod["spec"].get("volumes") or ():
            await self._make(volume)

    def mounts(self, container: Json) -> list[tuple[str, str]]:
        """(path in the container, path here) of each mount; raises ConfigError for one that has nothing behind it."""
        volumes = {volume["name"]: volume for volume in self._pod["spec"].get("volumes") or ()}
        found = []
        for mount in container.get("volumeMounts") or ():
            volume = volumes[mount["name"]]
            source = Path(volume["hostPath"]["path"]) if "hostPath" in volume else self._path(volume)
            if mount.get("subPathExpr"):
                raise ConfigError(f"mount {mount['mountPath']}: this node knows no subPathExpr, write subPath")
            if mount.get("subPath"):
                source = source / mount["subPath"]
                if "emptyDir" in volume:
                    source.mkdir(parents=True, exist_ok=True)
            if not source.exists():
                raise ConfigError(f"mount {mount['mountPath']}: {source} is not there")
            found.append((str(mount["mountPath"]), str(source)))
        return found

    def _path(self, volume: Json) -> Path:
        return self._folder / str(volume["name"])

    async def _make(self, volume: Json) -> None:
        name = str(volume["name"])
        if "emptyDir" in volume:
            self._path(volume).mkdir(parents=True, exist_ok=True)
        elif "hostPath" in volume:
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                os.makedirs(volume["hostPath"]["path"], exist_ok=True)
        elif any(kind in volume for kind in _KEPT):
            files: dict[str, str] = {}
            for source in volume["projected"]["sources"] if "projected" in volume else [volume]:
                files |= await self._files(name, source)
            if self._written.get(name) != files:
                write_at_once(self._path(volume), files)
                self._written[name] = files
        else:
            raise ConfigError(f"volume {name}: this node knows no {', '.join(k for k in volume if k != 'name')}")

    async def _files(self, volume: str, source: Json) -> dict[str, str]:
        for key, kind, named in (("configMap", "configmaps", "name"), ("secret", "secrets", "secretName")):
            if key in source:
                wanted = source[key]
                name = wanted.get(named) or wanted["name"]
                values = await self._lookup(kind, name, bool(wanted.get("optional")))
                if not wanted.get("items"):
                    return dict(values)
                missing = [item["key"] for item in wanted["items"] if item["key"] not in values]
                if missing and not wanted.get("optional"):
                    raise ConfigError(f"volume {volume}: {kind[:-1]} {name} has no key {', '.join(missing)}")
                return {item["path"]: values[item["key"]] for item in wanted["items"] if item["key"] in values}
        if "downwardAPI" in source:
            return {
                item["path"]: field(self._pod, item["fieldRef"]["fieldPath"]) for item in source["downwardAPI"]["items"]
            }
        if "serviceAccountToken" in source:
            wanted = source["serviceAccountToken"]
            if wanted["path"] not in self._tokens:
                self._tokens[wanted["path"]] = await self._token(self._pod, wanted)
            return {wanted["path"]: self._tokens[wanted["path"]]}
        raise ConfigError(f"volume {volume}: this node knows no {', '.join(source)}")


def write_at_once(folder: Path, files: Mapping[str, str]) -> None:
    """Let ``folder`` hold exactly these files, in one step for whoever reads ``..data`` or the files."""
    folder.mkdir(parents=True, exist_ok=True)
    old = folder / "..data"
    before = old.resolve() if old.is_symlink() else None
    new = folder / f"..{time.strftime('%Y_%m_%d_%H_%M_%S', time.gmtime())}.{time.monotonic_ns()}"
    for name, content in files.items():
        path = new / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    new.mkdir(exist_ok=True)
    link = folder / "..data_tmp"
    link.symlink_to(new.name)
    os.replace(link, old)
    wanted = {Path(name).parts[0] for name in files}
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in wanted:
            entry.unlink()
    for name in wanted:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data", name))
    if before is not None:
        shutil.rmtree(before, ignore_errors=True)
