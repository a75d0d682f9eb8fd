"""Parts of the real node that need neither root nor a kubelet: its names, its images, and what is missing for it."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import struct
import tarfile
from pathlib import Path

import pytest

from dev.realnode import missing, requirements
from dev.realnode.archive import write_archive
from dev.realnode.wires import answer

SERVICES = {("rljob-system", "rljob-operator-metrics"): "10.0.7.9"}


def asked(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    question = labels + b"\0" + struct.pack("!HH", kind, 1)
    return answer(
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + question, lambda ns, name: SERVICES.get((ns, name))
    )


def test_a_service_has_its_address_whatever_the_case() -> None:
    found = asked("RLJOB-operator-metrics.rljob-system.svc.cluster.local")
    identity, flags, questions, records = struct.unpack_from("!HHHH", found)
    assert (identity, questions, records) == (0x1234, 1, 1)
    assert flags & 0x800F == 0x8000
    assert ipaddress.IPv4Address(found[-4:]) == ipaddress.IPv4Address("10.0.7.9")


def test_a_service_has_no_address_of_the_other_kind_and_exists_all_the_same() -> None:
    flags, _, records = struct.unpack_from(
        "!HHH", asked("rljob-operator-metrics.rljob-system.svc.cluster.local", kind=28), 2
    )
    assert (flags & 0x000F, records) == (0, 0)


@pytest.mark.parametrize("name", ["other.rljob-system.svc.cluster.local", "example.com", "a.b.c.svc.cluster.local"])
def test_other_names_do_not_exist(name: str) -> None:
    flags, _, records = struct.unpack_from("!HHH", asked(name), 2)
    assert (flags & 0x000F, records) == (3, 0)


def test_an_archive_holds_what_its_manifest_says(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/hello").write_text("hello")
    (root / "bin").symlink_to("usr/bin")
    digest = write_archive(tmp_path / "image.tar", "localhost/x:1", root, {"User": "1"})
    with tarfile.open(tmp_path / "image.tar") as archive:

        def blob(name: str) -> bytes:
            file = archive.extractfile("blobs/sha256/" + name.removeprefix("sha256:"))
            assert file is not None
            content = file.read()
            assert "sha256:" + hashlib.sha256(content).hexdigest() == name
            return content

        manifest = json.loads(blob(digest))
        config = json.loads(blob(manifest["config"]["digest"]))
        (layer,) = manifest["layers"]
        assert len(blob(layer["digest"])) == layer["size"]
        assert config["rootfs"]["diff_ids"] == [layer["digest"]]
        assert len(config["history"]) == 1
        assert config["config"] == {"User": "1"}
        index = archive.extractfile("index.json")
        assert index is not None
        (entry,) = json.loads(index.read())["manifests"]
    assert entry["digest"] == digest
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/x:1"


def test_what_is_missing_is_said_with_the_packages_that_bring_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert missing() == "only root can set up networks and containers"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(requirements, "_SEARCHED", str(tmp_path))
    monkeypatch.setattr(requirements, "CNI_PLUGINS", tmp_path)
    assert missing() == (
        "packages are missing: apt-get install --no-install-recommends "
        "buildah containerd containernetworking-plugins iproute2 iptables procps runc"
    )
