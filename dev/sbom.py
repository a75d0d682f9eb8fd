"""What the operator is made of, as a CycloneDX document: ``python -m dev.sbom``.

Listed is what the operator needs to run, in the versions of this environment, with licences and with who needs whom. A tool that lists an
environment as it is would name the linters and the test tools as well, and nobody could tell what is shipped. The same closure,
as pins, is what ``make audit`` asks the advisories about.

The document is the same for the same environment: it has a time only if SOURCE_DATE_EPOCH gives one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any, cast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PRODUCT = "rljob-operator"
EXTRAS = frozenset({"operator"})
"""What an installation of the operator asks for."""

_SPDX = frozenset(
    {
        "Apache-2.0",
        "MIT",
        "ISC",
        "PSF-2.0",
        "MPL-2.0",
        "0BSD",
        "Zlib",
        "CC0-1.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "LLVM-exception",
    }
)
"""Identifiers of SPDX that the dependencies use."""

_SPELLINGS = {
    "apache 2.0": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "python software foundation license": "PSF-2.0",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
}
"""Other ways in which packages write them."""


@dataclass(frozen=True)
class Package:
    """A distribution that runs."""

    name: str
    """Its canonical name."""
    version: str
    summary: str
    license: str | None
    """As SPDX, or as the package words it; None if it says nothing."""
    needs: tuple[str, ...]
    """Canonical names of what it needs itself."""

    @property
    def purl(self) -> str:
        """Its package URL."""
        return f"pkg:pypi/{self.name}@{self.version}"


def closure(name: str = PRODUCT, extras: Iterable[str] = EXTRAS) -> dict[str, Package]:
    """A distribution and all that it needs to run here, by canonical name; raises PackageNotFoundError for what is not installed."""
    asked: dict[str, set[str]] = {}
    needs: dict[str, set[str]] = {}
    todo: list[tuple[str, frozenset[str]]] = [(canonicalize_name(name), frozenset(extras))]
    while todo:
        current, wanted = todo.pop()
        if current in asked and wanted <= asked[current]:
            continue
        asked.setdefault(current, set()).update(wanted)
        for requirement in _requirements(distribution(current), asked[current]):
            needed = canonicalize_name(requirement.name)
            needs.setdefault(current, set()).add(needed)
            todo.append((needed, frozenset(requirement.extras)))
    return {each: _package(distribution(each), tuple(sorted(needs.get(each, ())))) for each in sorted(asked)}


def document(packages: Mapping[str, Package], product: str = PRODUCT) -> dict[str, Any]:
    """The CycloneDX document of a closure."""
    components = [_component(package) for name, package in packages.items() if name != product]
    metadata: dict[str, Any] = {
        "component": {**_component(packages[product]), "type": "application"},
        "tools": {"components": [{"type": "application", "name": "dev.sbom", "version": packages[product].version}]},
    }
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch:
        metadata["timestamp"] = datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "components": components,
        "dependencies": [
            {"ref": package.purl, "dependsOn": [packages[name].purl for name in package.needs]}
            for package in packages.values()
        ],
        "metadata": metadata,
    }
    # A number of its own for each content, as the format wishes, and the same for the same content.
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        **body,
    }


def pins(packages: Mapping[str, Package], product: str = PRODUCT) -> str:
    """The closure without the product as a requirements file."""
    return "".join(f"{name}=={package.version}\n" for name, package in packages.items() if name != product)


def _requirements(of: Distribution, extras: Iterable[str]) -> Iterable[Requirement]:
    environments = [{"extra": extra} for extra in ("", *extras)]
    for text in of.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or any(requirement.marker.evaluate(each) for each in environments):
            yield requirement


def _package(of: Distribution, needs: tuple[str, ...]) -> Package:
    metadata: Message = cast(Message, of.metadata)
    return Package(
        name=canonicalize_name(str(metadata["Name"])),
        version=of.version,
        summary=str(metadata.get("Summary") or ""),
        license=_license(
            metadata.get("License-Expression"),
            metadata.get("License"),
            metadata.get_all("Classifier") or [],
        ),
        needs=needs,
    )


def _license(expression: str | None, words: str | None, classifiers: Iterable[str]) -> str | None:
    """The licence: the expression if there is one, else one line of words, else the classifier."""
    if expression:
        return expression
    classified = [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License :: ")]
    # Some packages put the whole text of the licence there.
    lines = [] if words is None or "\n" in words.strip() else [words.strip()]
    for found in (*lines, *classified):
        known = _SPELLINGS.get(found.lower(), found)
        if known:
            return known
    return None


def is_spdx(text: str) -> bool:
    """Whether a licence is written in SPDX, so that a tool can read it."""
    return all(word in _SPDX for word in re.split(r"[()\s]+|\b(?:AND|OR|WITH)\b", text) if word)


def _component(package: Package) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
    }
    if package.summary:
        found["description"] = package.summary
    if package.license is not None:
        spdx = is_spdx(package.license)
        found["licenses"] = [{"expression": package.license} if spdx else {"license": {"name": package.license}}]
    return found


def main() -> int:
    """Print the document, or the pins; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev.sbom", description="What the operator is made of.")
    parser.add_argument("--pins", action="store_true", help="print name==version lines instead of CycloneDX")
    args = parser.parse_args()
    try:
        packages = closure()
    except PackageNotFoundError as error:
        print(f"{error} is needed and not installed: run make setup", file=sys.stderr)
        return 1
    sys.stdout.write(pins(packages) if args.pins else json.dumps(document(packages), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
