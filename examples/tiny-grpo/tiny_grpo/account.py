"""The account of samples: what was asked for has to come back, whatever happens to the servers.

``submitted = finished + lost + in flight`` at any moment. Lost is what this process gave up: at its end, or by an error. What was in flight when it
was killed is in no account, since the next process starts a new one: ``started_at`` tells them apart. A sample is cut when a server had begun it and did not finish it; it is asked for
again, and so counted as retried too. What a server refused costs nothing.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter


class Account:
    """Counters in the trainer's registry, and the same numbers for a file."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """All from 0: a trainer that starts anew starts a new account."""
        self._started_at = time.time()

        def counter(name: str, text: str) -> Counter:
            return Counter(f"tiny_grpo_samples_{name}", text, registry=registry)

        self.submitted = counter("submitted", "Samples asked for")
        self.finished = counter("finished", "Samples answered")
        self.cut = counter("cut", "Samples that a server had begun and did not finish; each was asked for again")
        self.refused = counter("refused", "Samples that a server did not take; each was asked for again")
        self.retried = counter("retried", "Samples asked for once more, after a cut or a refusal")
        self.lost = counter("lost", "Samples given up without an answer")

    def numbers(self) -> dict[str, int]:
        """The counters as they stand."""
        return {name: int(counter._value.get()) for name, counter in vars(self).items() if not name.startswith("_")}

    def write(self, path: Path, numbers: dict[str, int]) -> None:
        """Write ``numbers`` as JSON, with the time at which this account began; whole or not at all."""
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(json.dumps({**numbers, "started_at": self._started_at}, indent=2) + "\n")
        partial.replace(path)
