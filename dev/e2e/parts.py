"""The parts of the job: where they lie, and what was chosen for them.

The numbers make a job whose best split moves while its answers grow: a training step has a part that is the same whatever it trains on, as small
steps do, and sampling has none. Two samplers keep four trainers busy with answers of eight tokens; with thirty-two the trainers would wait
twice as long as they train.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dev.vllm import device
from dev.vllm.server import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "tiny-grpo"
RUNTIME = ROOT / "runtime"

TASK = "count"
"""The prompt says from where to where to count: it stays short while answers grow."""

PROMPT_TOKENS = 4
SHORT_TOKENS, LONG_TOKENS = 8, 32
"""Mean response at the start and after it has grown."""
GROWS_FROM, GROWS_TO = 30, 50
"""Policy versions between which responses grow."""
STEPS = 5000
"""More than the run will see."""
GROWING = f"0:{SHORT_TOKENS},{GROWS_FROM}:{SHORT_TOKENS},{GROWS_TO}:{LONG_TOKENS}"
"""Lengths that grow so."""
PROMPTS_PER_STEP, SAMPLES_PER_PROMPT = 8, 8

GPUS = 6
MAX_RUNNING = 16
MAX_MODEL_TOKENS = 128
KV_TOKENS = 2048
"""Room for all that may run."""
BLOCK_TOKENS = 32
"""The least that attention on a CPU takes."""
_KV_BYTES_PER_TOKEN = 2 * 2 * 2 * 32 * 4
"""Keys and values of two layers with two heads of 32 numbers in 4 bytes."""

STEP_S, STEP_PER_SAMPLE_S = 0.05, 0.001
"""What an iteration of a sampler lasts on the device that it plays, and what each running sample adds."""
TRAIN_S_PER_STEP, TRAIN_S_PER_TOKEN = 1.2, 0.001
"""What a training step lasts on the devices that the trainers play, and what each token of the batch adds on one of them, in seconds."""


@dataclass(frozen=True)
class Parts:
    """What the containers run, and where."""

    python: Path
    """The Python that has vLLM and torch."""
    shared: Path
    """Folder that all pods share: the model, its versions, the account."""
    programs: tuple[Path, ...] = ()
    """Further folders that a container needs."""

    @property
    def model(self) -> Path:
        """The model that the run starts from."""
        return self.shared / "model"

    @property
    def folders(self) -> tuple[Path, ...]:
        """What has to be seen in a container, under the path that it has here."""
        # The interpreter of an environment lies outside of it, and with it the standard library.
        base = Path(self._told("import sys; print(sys.base_prefix)"))
        return (self.shared, self.python.parents[1], ROOT, base, *self.programs)

    def _told(self, code: str) -> str:
        return subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    def write_model(self, cached: Path) -> None:
        """Write the warm model: from ``cached``, where it is made first if it is not there (some seconds)."""
        if not (cached / "config.json").exists():
            command = [str(self.python), "-m", "tiny_grpo.model", str(cached), "--task", TASK, "--until", "0.9"]
            env = {"PYTHONPATH": python_path(), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"the model could not be written: {done.stderr.strip()[-2000:]}")
        self.shared.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", str(cached), str(self.model)], check=True)

    def serve_arguments(self) -> list[str]:
        """Arguments of ``vllm serve`` that samplers and the server that is calibrated have in common; without a cache of prefixes, so that each sample costs what it would alone."""
        return [
            *("--max-model-len", str(MAX_MODEL_TOKENS), "--dtype", "float32", "--enforce-eager"),
            *("--kv-cache-memory-bytes", str(KV_TOKENS * _KV_BYTES_PER_TOKEN), "--block-size", str(BLOCK_TOKENS)),
            *("--no-enable-prefix-caching", "--generation-config", "vllm"),
            *("--enable-scale-out", "--enable-server-load-tracking", "--enable-log-requests"),
        ]

    def sampler_environment(self) -> dict[str, str]:
        """Variables of a sampler, its pace included."""
        paced = device.environment(STEP_S, STEP_PER_SAMPLE_S, base={"PYTHONPATH": str(RUNTIME)})
        # Each start would else import the model's class in a process of its own, to find out what it can: a quarter of all that a start takes.
        cache = str(self.shared / "vllm-cache")
        return {**ENVIRONMENT, **paced, "PYTHONDONTWRITEBYTECODE": "1", "VLLM_CACHE_ROOT": cache}

    def trainer_arguments(self, lengths: str) -> list[str]:
        """Arguments of the trainer; ``lengths`` are those of responses, as its ``--length-trace`` has them."""
        return [
            *("--layout", "/etc/rljob", "--shared", str(self.shared), "--steps", str(STEPS), "--task", TASK, "--stay"),
            *("--length-trace", lengths, "--prompts-per-step", str(PROMPTS_PER_STEP)),
            *("--samples-per-prompt", str(SAMPLES_PER_PROMPT)),
            *("--device-seconds-per-step", str(TRAIN_S_PER_STEP)),
            *("--device-seconds-per-token", str(TRAIN_S_PER_TOKEN)),
        ]


def python_path() -> str:
    """Where a trainer finds the example and the runtime."""
    return f"{EXAMPLE}:{RUNTIME}"


def interpreter() -> str:
    """The Python of this process, which has what the operator needs."""
    return sys.executable
