"""Where the numbers of a framework end: a Reporter, and what turns the framework's units into its units."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_runtime.reporter import Reporter


@dataclass
class Sink:
    """What the rules of a dialect feed. Not thread-safe: the mirror calls them under its lock."""

    reporter: Reporter
    """What is fed."""
    samples_per_prompt: int | None = None
    """Samples of a group, where the framework does not log it and its user said; None if unknown: then nothing is converted by it."""
    prompts_per_step: int | None = None
    """Groups that a policy version is trained on, where the user said; None if unknown."""
    step: int | None = None
    """The step that the numbers being fed were logged for; None if the framework gave none."""

    @property
    def samples_per_step(self) -> int | None:
        """Samples that a policy version is trained on; None if unknown."""
        if self.samples_per_prompt is None or self.prompts_per_step is None:
            return None
        return self.samples_per_prompt * self.prompts_per_step
