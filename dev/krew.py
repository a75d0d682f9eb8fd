"""Builds the krew plugin: an archive with the launcher, and the manifest that names it: ``python -m dev.krew --url URL``.

krew installs an archive of files by its checksum, so both are made in one go, and the archive is the same whoever makes it: no time, no
owner, files in order. ``problems`` says what krew's index would refuse; the fields and bounds are those of its plugin API v1alpha2.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rljob_planner import __version__

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "packaging" / "krew"
DEFAULT_URL = "https://example.com/rljob-operator"
"""Where releases are, until somebody says where: a placeholder that no release should carry."""

_FILES = ((FOLDER / "kubectl-rljob", 0o755), (ROOT / "LICENSE", 0o644))

_NAME = re.compile(r"^[\w-]+$")
_VERSION = re.compile(r"^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$")
_SHA256 = re.compile(r"^[0-9a-f]{64}$")
_LONGEST_SHORT_DESCRIPTION = 50


def filled(text: str, values: Mapping[str, str]) -> str:
    """A template with its ``{{name}}`` filled in; raises KeyError for a name without a value."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], text)


def archive(version: str = __version__) -> bytes:
    """The plugin's ``.tar.gz``."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, mode in _FILES:
            data = path.read_bytes()
            if path.parent == FOLDER:
                data = filled(data.decode(), {"version": version}).encode()
            info = tarfile.TarInfo(path.name)
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))
    compressed = io.BytesIO()
    with gzip.GzipFile(fileobj=compressed, mode="wb", mtime=0, filename="") as out:
        out.write(packed.getvalue())
    return compressed.getvalue()


def file_name(version: str = __version__) -> str:
    """What the archive is called."""
    return f"kubectl-rljob-{version}.tar.gz"


def manifest(packed: bytes, url: str, version: str = __version__) -> str:
    """The manifest of an archive that lies under ``url``, the address of a release."""
    return filled(
        (FOLDER / "rljob.yaml").read_text(encoding="utf-8"),
        {
            "version": version,
            "homepage": url.partition("/releases/")[0],
            "uri": f"{url.rstrip('/')}/{file_name(version)}",
            "sha256": hashlib.sha256(packed).hexdigest(),
        },
    )


def problems(document: Mapping[str, Any]) -> Iterator[str]:
    """What krew's index would refuse of a manifest."""
    if document.get("apiVersion") != "krew.googlecontainertools.github.com/v1alpha2":
        yield "apiVersion"
    if document.get("kind") != "Plugin":
        yield "kind"
    if not _NAME.match(str((document.get("metadata") or {}).get("name") or "")):
        yield "metadata.name"
    spec = document.get("spec") or {}
    yield from (f"spec.{key} is unknown" for key in sorted(spec.keys() - _SPEC))
    if not _VERSION.match(str(spec.get("version") or "")):
        yield "spec.version: semantic, with a v in front"
    short = str(spec.get("shortDescription") or "")
    if not short or len(short) > _LONGEST_SHORT_DESCRIPTION or short.endswith(".") or "\n" in short:
        yield f"spec.shortDescription: at most {_LONGEST_SHORT_DESCRIPTION} letters in one line, and no full stop"
    for key in ("description", "homepage"):
        if not spec.get(key):
            yield f"spec.{key} is missing"
    if not spec.get("platforms"):
        yield "spec.platforms is missing"
    for index, platform in enumerate(spec.get("platforms") or ()):
        yield from (f"spec.platforms[{index}]: {problem}" for problem in _of_platform(platform))


_SPEC = {"version", "homepage", "shortDescription", "description", "caveats", "platforms"}
_PLATFORM = {"selector", "uri", "sha256", "files", "bin"}


def _of_platform(platform: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{key} is missing" for key in sorted(_PLATFORM - platform.keys()))
    yield from (f"{key} is unknown" for key in sorted(platform.keys() - _PLATFORM))
    if not str(platform.get("uri") or "").startswith("https://"):
        yield "uri: over https"
    if not _SHA256.match(str(platform.get("sha256") or "")):
        yield "sha256: 64 digits in lower case"
    installed = set()
    for file in platform.get("files") or ():
        if not file.get("from") or not file.get("to"):
            yield "files: each says from and to"
            continue
        installed.add(str(file["from"]).rpartition("/")[2])
    if str(platform.get("bin") or "").rpartition("/")[2] not in installed:
        yield "bin: it is none of the files"
    expressions = (platform.get("selector") or {}).get("matchExpressions") or ()
    keys = {str(each.get("key")) for each in expressions} | set(
        (platform.get("selector") or {}).get("matchLabels") or ()
    )
    if not keys or keys - {"os", "arch"}:
        yield "selector: by os and arch"


def build(folder: Path, url: str) -> tuple[Path, Path]:
    """Writes the archive and the manifest; returns their paths. Raises ValueError for what krew would refuse."""
    packed = archive()
    text = manifest(packed, url)
    wrong = list(problems(yaml.safe_load(text)))
    if wrong:
        raise ValueError("; ".join(wrong))
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / file_name(), folder / "rljob.yaml"
    written[0].write_bytes(packed)
    written[1].write_text(text, encoding="utf-8")
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds the plugin into a folder."""
    parser = argparse.ArgumentParser(prog="python -m dev.krew", description="Build the krew plugin.")
    parser.add_argument(
        "--url", default=DEFAULT_URL, help="where the archive will be downloaded from, without its name"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "krew", help="folder to write to")
    options = parser.parse_args(arguments)
    try:
        made = build(options.output, options.url)
    except ValueError as error:
        print(f"krew would refuse it: {error}", file=sys.stderr)
        return 1
    for path in made:
        print(path)
    if options.url == DEFAULT_URL:
        print("The manifest's address is a placeholder: make krew URL=https://… names the release", file=sys.stderr)
    print(f"Try it: kubectl krew install --manifest={made[1]} --archive={made[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
