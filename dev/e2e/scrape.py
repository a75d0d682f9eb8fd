"""The scrape configuration that the documentation gives to those without the Prometheus Operator, taken from there.

So what is tried here is what a user would paste. Added is what a Prometheus outside of the cluster has to be told: where the API server is.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from dev.e2e.parts import ROOT

PAGE = ROOT / "docs" / "install.md"


def documented() -> str:
    """The block of ``docs/install.md`` that begins with ``scrape_configs``; raises LookupError if there is none."""
    found = re.search(r"```yaml\n(scrape_configs:\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    if found is None:
        raise LookupError(f"{PAGE} has no block of YAML that begins with scrape_configs")
    return found[1]


def scrape_config(*, server: str, ca_file: Path, token_file: Path) -> str:
    """``scrape_configs`` (YAML) as documented, for a Prometheus that reaches the API server from outside."""
    jobs = yaml.safe_load(documented())["scrape_configs"]
    for job in jobs:
        for discovery in job["kubernetes_sd_configs"]:
            discovery |= {
                "api_server": server,
                "tls_config": {"ca_file": str(ca_file)},
                "authorization": {"credentials_file": str(token_file)},
            }
    return yaml.safe_dump(jobs, sort_keys=False)
