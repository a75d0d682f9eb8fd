"""What ``rljob calibrate`` makes of one sampler, before the job is there: a ConfigMap that the job names."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from dev.e2e import parts
from dev.e2e.parts import ROOT, Parts
from dev.vllm.server import Server

CONCURRENCY = (1, 4, 16)
RESPONSE_TOKENS = 16


class Calibration:
    """A sampler that starts beside the plane, to be measured once both are there; it ends with the ``with``."""

    def __init__(self, made: Parts, folder: Path) -> None:
        """What is measured and said goes to ``folder``."""
        self._made, self._folder = made, folder
        self._server = Server(
            made.python,
            made.model,
            more=made.serve_arguments(),
            env=made.sampler_environment(),
            max_running=parts.MAX_RUNNING,
        )

    def __enter__(self) -> Self:
        """Start it, and wait for nothing."""
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it; harmless if done before."""
        self._server.close()

    @property
    def serves(self) -> bool:
        """Whether it serves now; RuntimeError with its log if it has ended."""
        if (code := self._server.exit_code()) is not None:
            raise RuntimeError(
                f"the server that was to be calibrated ended with exit code {code}. {self._server.log()}"
            )
        return self._server.serves()

    def measure(self) -> dict[str, Any]:
        """Measure it by the command that users have, and return the calibration; RuntimeError with the command's words."""
        file = self._folder / "calibration.yaml"
        command = [
            *(parts.interpreter(), "-m", "rljob_operator.cli", "calibrate"),
            *("--url", self._server.url, "--model", str(self._made.model)),
            *("--concurrency", ",".join(map(str, CONCURRENCY)), "--prompt-tokens", str(parts.PROMPT_TOKENS)),
            *(
                "--response-tokens",
                str(RESPONSE_TOKENS),
                "--max-seconds",
                "90",
                "--efficiency",
                "100%",
                "-o",
                str(file),
            ),
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        (self._folder / "calibrate.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
        if done.returncode != 0:
            raise RuntimeError(f"rljob calibrate failed: {(done.stderr or done.stdout).strip()[-2000:]}")
        found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
        # Of the trainer nothing can be measured before it runs: this is what the device that it plays takes.
        found.setdefault("trainers", {})["measured"] = {
            "stepSeconds": parts.TRAIN_S_PER_STEP,
            "tokenSeconds": parts.TRAIN_S_PER_TOKEN,
        }
        file.write_text(yaml.safe_dump(found, sort_keys=False), encoding="utf-8")
        return found
