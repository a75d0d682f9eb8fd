"""Response lengths out of a run's log, in the shapes that such logs have.

A team that has run a job once knows its lengths better than any law does, but its log was written for something else: a number a
line, an object a sample, a record of a serving benchmark. So a field is found by the names that it goes by, and everything else in
a line is ignored. What is not clear is never guessed: a mean instead of a length, a field that only some lines have, or a
response that was aborted would give a fit that looks right and is wrong. Errors name file and line and say what to write.
"""

from __future__ import annotations

import gzip
import json
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_planner.lengths import MAX_TOKENS

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

LENGTH_KEYS = (
    "responselength", "responselengths", "responsetokens", "responselen", "responselens", "numresponsetokens",
    "completiontokens", "completionlength", "completionlengths", "completionlen", "outputlength", "outputlengths",
    "outputtokens", "outputlen", "outputlens", "numoutputtokens", "generatedtokens", "numgeneratedtokens", "genlen",
    "gentokens", "rolloutlength", "length", "tokens", "numtokens",
)  # fmt: skip
"""Names of a response's length, lower case without separators; the first that an object has counts."""

PROMPT_KEYS = (
    "promptlength", "prompttokens", "promptlen", "numprompttokens", "inputlength", "inputtokens", "inputlen",
)  # fmt: skip
GROUP_KEYS = ("groupid", "promptid", "promptuid", "group", "promptindex", "problemid", "questionid", "taskid", "uid")
STEP_KEYS = (
    "step",
    "globalstep",
    "trainingstep",
    "trainstep",
    "policyversion",
    "weightversion",
    "version",
    "iteration",
)
TRUNCATED_KEYS = ("truncated", "istruncated", "responsetruncated", "overlong", "clipped")
FINISH_KEYS = ("finishreason", "stopreason")
_CUT = {"length", "max_tokens", "max_length", "model_length"}
_NOT_FINISHED = {"abort", "aborted", "cancel", "cancelled", "canceled", "error", "failed", "timeout"}

_SHAPES = 'a number a line, or an object a line such as {"response_length": 812}'


class InvalidTraceError(ValueError):
    """A file that holds no response lengths; the message says where, why and what to write instead."""


@dataclass(frozen=True, eq=False)
class LengthTrace:
    """Lengths of the responses of a run, in the order of its log, with what else the log says of each."""

    source: str
    """The file, as it was named."""
    tokens: IntArray
    """Response lengths in tokens, at least 0."""
    truncated: BoolArray | None = None
    """Whether each response was cut rather than ended by itself; None where the log does not say."""
    prompt_tokens: IntArray | None = None
    groups: IntArray | None = None
    """Which group each response belongs to, from 0: its prompt, in each step anew; None where the log does not say."""
    steps: IntArray | None = None
    """Training step or policy version of each response; None where the log does not say."""
    is_serving: bool = False
    """Whether this is a log of requests to a server (the Mooncake format) and not of an RL run."""
    notes: tuple[str, ...] = ()
    """What of the file was left out, and why."""


def read_lengths(path: str | Path) -> LengthTrace:
    """The lengths in a JSONL file, gzipped or not; raises InvalidTraceError that names file and line."""
    source = str(path)
    try:
        raw = Path(path).read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        text = raw.decode("utf-8")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InvalidTraceError(f"{source}: {why}") from None
    except (EOFError, zlib.error):
        raise InvalidTraceError(f"{source}: the compressed file is not whole") from None
    except UnicodeDecodeError:
        raise InvalidTraceError(f"{source}: this is no text in UTF-8: write {_SHAPES}") from None
    return parse_lengths(text, source)


def parse_lengths(text: str, source: str) -> LengthTrace:
    """The lengths in a text; ``source`` names it in errors. Raises InvalidTraceError."""
    columns = _Columns(source)
    text = text.removeprefix("\ufeff")
    for line, entry in _entries(text, source):
        columns.add(line, entry)
    return columns.trace()


def _entries(text: str, source: str) -> Iterator[tuple[int, Any]]:
    """Line number and value of each entry: the lines, or the items of one JSON array."""
    if text.lstrip().startswith("["):
        try:
            items = json.loads(text)
        except ValueError:
            raise InvalidTraceError(
                f"{source}:1: begins with a JSON array and is none: write {_SHAPES}, or one array of them"
            ) from None
        yield from enumerate(items, 1)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError):
            shown = line.strip()[:60]
            raise InvalidTraceError(f"{source}:{number}: {shown!r} is not JSON: write {_SHAPES}") from None


@dataclass
class _Column:
    """A field that counts only if every line has it."""

    what: str
    values: array[int] = field(default_factory=lambda: array("q"))
    missing: int = 0

    def add(self, value: int | None, times: int) -> None:
        if value is None:
            self.missing += times
        else:
            self.values.extend([value] * times)

    def read(self, notes: list[str]) -> IntArray | None:
        if not self.values:
            return None
        if self.missing:
            share = self.missing / (self.missing + len(self.values))
            notes.append(f"{share:.1%} of the responses have no {self.what}, so it is not used")
            return None
        return np.array(self.values, dtype=np.int64)


class _Columns:
    """The fields of all lines so far."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens = array("q")
        self.truncated = _Column("reason why they ended")
        self.prompt = _Column("prompt length")
        self.group = _Column("prompt id")
        self.step = _Column("step")
        self.unfinished = 0
        self.serving = 0
        self._codes: dict[str, int] = {}
        self._named: dict[tuple[str, ...], dict[str, str]] = {}

    def add(self, line: int, entry: Any) -> None:
        if not isinstance(entry, dict):
            self.tokens.append(self._whole(line, "", entry))
            for column in (self.truncated, self.prompt, self.group, self.step):
                column.add(None, 1)
            return
        flat = _flat(entry)
        keys = tuple(flat)
        names = self._named.get(keys)
        if names is None:
            names = self._named[keys] = {_plain(key): key for key in reversed(keys)}
        key = _first(LENGTH_KEYS, names)
        if key is None:
            shown = ", ".join(list(entry)[:8]) or "there are none"
            raise InvalidTraceError(
                f"{self.source}:{line}: no response length among the keys ({shown}): call it response_length, "
                "output_length, completion_tokens or length"
            )
        value = flat[key]
        lengths = [self._whole(line, key, v) for v in (value if isinstance(value, list) else [value])]
        why = _value(FINISH_KEYS, flat, names)
        if isinstance(why, str) and why.lower() in _NOT_FINISHED:
            self.unfinished += len(lengths)
            return
        self.serving += len(lengths) if "hashids" in names and "timestamp" in names else 0
        self.tokens.extend(lengths)
        self.truncated.add(_cut(_value(TRUNCATED_KEYS, flat, names), why), len(lengths))
        prompt_key = _first(PROMPT_KEYS, names)
        prompt = flat[prompt_key] if prompt_key is not None else None
        self.prompt.add(None if prompt is None else self._whole(line, str(prompt_key), prompt), len(lengths))
        step = _step(_value(STEP_KEYS, flat, names))
        self.group.add(self._code(_value(GROUP_KEYS, flat, names), step), len(lengths))
        self.step.add(step, len(lengths))

    def _whole(self, line: int, key: str, value: Any) -> int:
        where = f"{self.source}:{line}: " + (f"{key}: " if key else "")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidTraceError(f"{where}{json.dumps(value)[:60]} is no number of tokens: write {_SHAPES}")
        if not 0 <= value <= MAX_TOKENS:
            raise InvalidTraceError(f"{where}a length lies between 0 and {MAX_TOKENS} tokens, but this is {value:g}")
        if value != int(value):
            raise InvalidTraceError(
                f"{where}a length is a whole number of tokens, but this is {value:g}: a mean over samples says nothing "
                "of the longest, so write the length of each sample"
            )
        return int(value)

    def _code(self, prompt: Any, step: int | None) -> int | None:
        """The group of a response: a prompt that comes again in a later step is another group."""
        if isinstance(prompt, bool) or not isinstance(prompt, str | int):
            return None
        return self._codes.setdefault(f"{step}/{prompt}", len(self._codes))

    def trace(self) -> LengthTrace:
        notes: list[str] = []
        if not self.tokens:
            some = (
                f"all {self.unfinished} responses in it were aborted" if self.unfinished else "there is nothing in it"
            )
            raise InvalidTraceError(f"{self.source}: {some}: write {_SHAPES}")
        if self.unfinished:
            notes.append(f"{self.unfinished} aborted responses are left out: their lengths are those of the abort")
        truncated = self.truncated.read(notes)
        return LengthTrace(
            source=self.source,
            tokens=np.array(self.tokens, dtype=np.int64),
            truncated=None if truncated is None else truncated.astype(np.bool_),
            prompt_tokens=self.prompt.read(notes),
            groups=self.group.read(notes),
            steps=self.step.read(notes),
            is_serving=self.serving == len(self.tokens),
            notes=tuple(notes),
        )


def _plain(key: str) -> str:
    return "".join(c for c in key.lower() if c.isalnum())


def _flat(entry: dict[str, Any]) -> dict[str, Any]:
    """The object with what ``usage`` and the only choice of a chat completion hold."""
    flat = dict(entry)
    choices = entry.get("choices")
    inner = [entry.get("usage"), choices[0] if isinstance(choices, list) and len(choices) == 1 else None]
    for part in inner:
        if isinstance(part, dict):
            flat.update({key: value for key, value in part.items() if key not in flat})
    return flat


def _first(keys: tuple[str, ...], names: Mapping[str, str]) -> str | None:
    return next((names[key] for key in keys if key in names), None)


def _value(keys: tuple[str, ...], flat: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    key = _first(keys, names)
    return None if key is None else flat[key]


def _cut(flag: Any, why: Any) -> int | None:
    if isinstance(flag, bool) or (isinstance(flag, int) and flag in (0, 1)):
        return int(flag)
    return int(why.lower() in _CUT) if isinstance(why, str) else None


def _step(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        return None
    return int(value)
