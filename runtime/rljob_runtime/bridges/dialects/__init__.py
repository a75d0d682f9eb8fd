"""The frameworks that there are bridges for, each in a file of its own."""

from rljob_runtime.bridges.dialect import Framework
from rljob_runtime.bridges.dialects.areal import AREAL
from rljob_runtime.bridges.dialects.nemo_rl import NEMO_RL
from rljob_runtime.bridges.dialects.prime_rl import PRIME_RL
from rljob_runtime.bridges.dialects.skyrl import SKYRL
from rljob_runtime.bridges.dialects.slime import SLIME
from rljob_runtime.bridges.dialects.trl import TRL
from rljob_runtime.bridges.dialects.verl import VERL

FRAMEWORKS: dict[str, Framework] = {
    framework.name: framework for framework in (AREAL, NEMO_RL, PRIME_RL, SKYRL, SLIME, TRL, VERL)
}
"""By the name that users give."""
