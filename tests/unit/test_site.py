"""The documentation as people find it: every link of every page leads somewhere, in the repository and on the site, and the site can be built.

Nothing here needs the network: links to other hosts are not followed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dev.docs import site

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.glob("*.md"),
        ROOT / "runtime" / "README.md",
        ROOT / "charts" / "rljob-operator" / "README.md",
    ]
)

_FENCED = re.compile(r"^```.*?^```[ \t]*$", re.MULTILINE | re.DOTALL)
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def links(text: str) -> Iterator[str]:
    """Targets of links, those in blocks of code aside."""
    yield from _LINK.findall(_FENCED.sub("", text))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the repository's host makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", _FENCED.sub("", text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        n = next(n for n in range(100) if (slug if n == 0 else f"{slug}-{n}") not in found)
        found.add(slug if n == 0 else f"{slug}-{n}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    broken = []
    for target in links(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        there = file.exists() and file.is_relative_to(ROOT)
        if there and anchor and file.suffix == ".md":
            there = anchor in anchors(file.read_text(encoding="utf-8"))
        if not there:
            broken.append(target)
    assert broken == []


def test_a_link_within_the_docs_is_left_alone_and_one_out_of_them_goes_to_the_repository() -> None:
    text = "[a](api.md#spec) ![p](img/x.png) [role](installer-role.yaml) [s](../crds/samples) [c](../Makefile)"
    with_url = site.rewritten(text, "index.md", "https://example.com/r/")
    assert with_url == (
        "[a](api.md#spec) ![p](img/x.png) [role](installer-role.yaml) "
        "[s](https://example.com/r/tree/main/crds/samples) [c](https://example.com/r/blob/main/Makefile)"
    )


def test_without_an_address_the_path_stands_beside_the_words() -> None:
    assert site.rewritten("[the samples](../crds/samples)", "a.md", "") == "the samples (`crds/samples`)"
    assert site.rewritten("[crds/samples](../crds/samples)", "a.md", "") == "crds/samples"
    assert site.rewritten("[schemas](schemas)", "a.md", "") == "schemas (`docs/schemas`)"


def test_a_link_to_nothing_and_one_in_a_block_of_code_are_left_for_the_builder() -> None:
    for text in ("[a](../nothing.py)", "[a](nothing.md)", "[a](https://example.com)", "```\n[s](../crds)\n```"):
        assert site.rewritten(text, "a.md", "") == text


def test_blocks_of_yaml_on_the_pages_are_yaml() -> None:
    for page in PAGES:
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            list(yaml.safe_load_all(block))


def test_every_value_that_a_page_sets_is_one_of_the_chart() -> None:
    values = yaml.safe_load((ROOT / "charts" / "rljob-operator" / "values.yaml").read_text(encoding="utf-8"))
    set_anywhere = set()
    for page in PAGES:
        for name in re.findall(r"--set(?:-string)?[ =]'?([A-Za-z][\w.]*)[=\[]", page.read_text(encoding="utf-8")):
            found = values
            for key in name.split("."):
                # An empty map of the defaults, such as additionalLabels, takes any key.
                found = found.get(key) if isinstance(found, dict) and (found or key not in found) else {}
                assert found is not None or "additionalLabels" in name, f"{page.name} sets {name}"
                if found is None:
                    break
            set_anywhere.add(name)
    assert {"image.repository", "prometheus.url"} <= set_anywhere


def test_every_make_target_and_every_command_that_a_page_names_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    commands = set(re.findall(r"^- \[`rljob ([a-z]+)", (DOCS / "cli.md").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        code = "\n".join(_FENCED.findall(text) + re.findall(r"`[^`\n]+`", text))
        assert set(re.findall(r"(?<![\w.-])make ([a-z][a-z-]*)\b", code)) <= targets, page.name
        named = set(re.findall(r"(?:^|[`$] ?|kubectl )rljob ([a-z]+)\b", code, re.MULTILINE))
        assert named <= commands, page.name


def test_the_quickstart_shows_what_a_plan_prints_today() -> None:
    text = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    block = re.search(r"^```console\n\$ rljob (plan .*)\n((?:.*\n)*?)```", text, re.MULTILINE)
    assert block is not None
    done = subprocess.run(
        [sys.executable, "-c", "from rljob_operator.cli import main; main()", *block[1].split()],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=True,
    )
    # docs/planner.md is held to the numbers; here it is enough that each line is one that is printed, and the split the same.
    printed = {_without_digits(line) for line in done.stdout.splitlines()}
    shown = [line for line in block[2].splitlines() if line != "…"]
    assert [line for line in shown if _without_digits(line) not in printed] == []
    assert next(line for line in shown if line.startswith("Split")).rstrip() in {
        line.rstrip() for line in done.stdout.splitlines()
    }


def _without_digits(line: str) -> str:
    return " ".join(re.sub(r"[\d.,]+", "#", line).split())


def test_what_the_comparison_says_of_the_drift_bench_is_what_its_table_shows() -> None:
    _, results = (DOCS / "drift.md").read_text(encoding="utf-8").split("<!-- results:", 1)
    table = re.findall(r"^\| ([\w.-]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ", results, re.M)
    rows = [[float(ratio) for ratio in row[1:]] for row in table]
    rljob, best, start, threshold = ([100.0 * (value - 1.0) for value in column] for column in zip(*rows, strict=True))
    text = " ".join((DOCS / "compared.md").read_text(encoding="utf-8").split())
    traces = NUMBERS[len(rows)]
    assert (
        f"{min(start):.1f} to {max(start):.1f} % longer than a clairvoyant, the operator {min(rljob):.1f} to {max(rljob):.1f} %"
        in text
    )
    assert f"took {min(best):.0f} to {max(best):.1f} % longer" in text
    better = sum(b < r for b, r in zip(best, rljob, strict=True))
    assert f"better than the operator on {NUMBERS[better]} of the {traces}" in text
    assert f"took {min(threshold):.1f} to {max(threshold):.1f} % longer" in text
    ahead = [r - t for r, t in zip(rljob, threshold, strict=True) if t < r]
    by = f", by {max(ahead):.1f} %" if ahead else ""
    assert f"on {NUMBERS[len(ahead)] if ahead else 'none'} of the {traces} traces the autoscaler was ahead{by}" in text


@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None,
    reason="the site's builder is not installed: pip install --group docs",
)
@pytest.mark.parametrize("repo_url", ["", "https://example.com/rljob-operator"], ids=["no-address", "address"])
def test_the_site_builds_without_a_warning(tmp_path: Path, repo_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "SITE_REPO_URL": repo_url, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")
    quickstart = (tmp_path / "site" / "quickstart.html").read_text(encoding="utf-8")
    assert 'id="on-a-cluster"' in quickstart
    linked = 'href="https://example.com/rljob-operator/blob/main/crds/samples/recommend-only.yaml"'
    assert (linked in quickstart) == bool(repo_url)
    # Readers behind a firewall see it as it is: no font, script or style comes from another host.
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"https?://(?!example\.com)[^\"]+\"", quickstart)
