"""What staleness costs and gains: the same job under several limits, several seeds each, on the same local samplers.

    python -m tiny_grpo.compare --staleness 0 1 4 --seeds 0 1 2 --steps 80 --directory compare

Each run leaves ``compare/staleness-<limit>-seed-<seed>/history.jsonl``, which ``python -m tiny_grpo.plots compare`` draws. A run that is
whole already is not run again. Options that this command doesn't know are the trainer's.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from tiny_grpo.model import write_model
from tiny_grpo.run import Servers, write_layout
from tiny_grpo.task import Kind


def is_whole(run: Path, steps: int) -> bool:
    """Whether a run is there, up to its last step."""
    history = run / "history.jsonl"
    return history.exists() and len(history.read_text().splitlines()) == steps


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train under several staleness limits, one run after the other.")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--samplers", type=int, default=2)
    parser.add_argument("--in-flight", type=int, default=256, help="most samples in flight")
    parser.add_argument("--max-running", type=int, default=64, help="most running samples of one sampler")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--task", type=Kind, choices=list(Kind), default=Kind.SORT)
    parser.add_argument("--directory", type=Path, default=Path("compare"))
    options, rest = parser.parse_known_args()
    directory: Path = options.directory.absolute()
    model = directory / f"model-{options.task.value}"
    write_model(model, options.task)
    with Servers(model, options.samplers, options.max_running, directory) as servers:
        for seed in options.seeds:
            for limit in options.staleness:
                run = directory / f"staleness-{limit}-seed-{seed}"
                if is_whole(run, options.steps):
                    continue
                shutil.rmtree(run, ignore_errors=True)
                write_layout(
                    run / "layout", servers.urls,
                    in_flight=options.in_flight, staleness=limit, max_running=options.max_running,
                )  # fmt: skip
                print(f"staleness {limit}, seed {seed}", flush=True)
                with (run / "trainer.log").open("w") as log:
                    subprocess.run(
                        [sys.executable, "-m", "tiny_grpo.train", f"--layout={run / 'layout'}", f"--shared={run}",
                         f"--model={model}", f"--task={options.task.value}", f"--steps={options.steps}",
                         f"--seed={seed}", "--port=0", *rest],
                        check=True, stdout=log, stderr=subprocess.STDOUT,
                    )  # fmt: skip


if __name__ == "__main__":
    main()
