"""YAML that people write, read as strictly as Kubernetes reads it.

A key that stands twice in a mapping silently loses one of its values in most readers, and ``1e-5`` is a text to PyYAML while it
is a number to JSON, to Kubernetes and to whoever wrote it. Errors carry file, line and column.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml


class InvalidDocumentError(ValueError):
    """A text that is no valid YAML; the message says where."""


class _Loader(yaml.SafeLoader):
    """YAML with exponents as numbers, and without keys given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key} stands here twice", key_node.start_mark
                )
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?[eE][-+]?[0-9]+$|^[-+]?\.[0-9]+[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def parse_documents(text: str, source: str) -> list[Any]:
    """All documents of a YAML (or JSON) text, empty ones left out; raises InvalidDocumentError that names ``source``."""
    try:
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise InvalidDocumentError(f"{where}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise InvalidDocumentError(f"{source}: not valid YAML: {error}") from None
    except (ValueError, RecursionError) as error:
        # A timestamp such as 2026-99-99, or brackets without an end.
        raise InvalidDocumentError(f"{source}: not valid YAML: {error}") from None


def read_text(path: Path) -> str:
    """The text of a file; raises InvalidDocumentError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidDocumentError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise InvalidDocumentError(f"{path}: this is no text in UTF-8, so it is no YAML file") from None
