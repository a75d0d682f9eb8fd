"""Free TCP ports for components that have to be told theirs before they start."""

from __future__ import annotations

import random
import socket


def free_ports(count: int) -> list[int]:
    """Return ports on loopback that nobody uses, outside the range from which Linux serves outgoing connections."""
    found: list[int] = []
    generator = random.SystemRandom()
    while len(found) < count:
        port = generator.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
