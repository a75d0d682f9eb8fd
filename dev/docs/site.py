"""A hook of the site's builder: links that lead out of ``docs/`` work on the site as they do in the repository.

Pages are read in two places. In the repository a link such as ``../crds/samples`` leads to a folder; on the site there is nothing above
``docs/``. So the site links to the repository where its address is known (``repo_url`` of mkdocs.yml, or the environment variable
``SITE_REPO_URL``), and shows the path as code where it is not. A link to a file that is not there is left alone in either case, so that the builder, which
is run with ``--strict``, refuses it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BRANCH = "main"

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*(?:\n[^\]\n]+)?)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FENCED = re.compile(r"(^```.*?^```[ \t]*$)", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, config: Any, page: Any, **_: object) -> str:
    """What the builder calls with each page."""
    return rewritten(markdown, page.file.src_uri, str(config.get("repo_url") or ""))


def rewritten(markdown: str, page: str, repo_url: str) -> str:
    """The page with its links out of ``docs/`` rewritten; ``page`` is its path in there, an empty ``repo_url`` an unknown one."""

    def replace(match: re.Match[str]) -> str:
        path = outside(match["target"], page)
        if path is None:
            return match[0]
        if repo_url:
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            return f"[{match['text']}]({repo_url.rstrip('/')}/{kind}/{BRANCH}/{path}{match['anchor'] or ''})"
        text = match["text"]
        return text if path in text else f"{text} (`{path}`)"

    parts = _FENCED.split(markdown)
    # Every second part is a block of code, which the pattern captures.
    return "".join(part if i % 2 else _LINK.sub(replace, part) for i, part in enumerate(parts))


def outside(target: str, page: str) -> str | None:
    """The path in the repository that a link of a page leads to, if the site has no such page or file; None otherwise."""
    if "://" in target or target.startswith(("mailto:", "/")):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    found = ROOT / path
    # Folders of docs/ are no pages of the site either.
    on_site = path.startswith("docs/") and not found.is_dir()
    return None if on_site or path.startswith("..") or not found.exists() else path
