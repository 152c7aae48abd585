"""Parity: the XOR of the bits before a meta token (paper, appendix D.1.3 and H)."""

import numpy as np

from metatok.tasks.base import Example, Task


class Parity(Task):
    """m * n random bits (the counts of Table 6); the meta token stands after a uniform number of them."""

    name = "parity"

    def example(self, phase: int, seed: int, index: int) -> Example:
        schedule = self.curriculum.phase(phase)
        rng = self.rng(phase, seed, index)
        u = rng.random(4).tolist()
        n_bits = schedule.n_lists(u[0]) * schedule.n_items(u[1], u[2])
        bits = rng.integers(ord("0"), ord("2"), size=n_bits, dtype=np.uint8).tobytes().decode()
        return compose(bits, 1 + int(u[3] * n_bits), phase)


def compose(bits: str, prefix: int, phase: int) -> Example:
    """The example that asks for the XOR of the first `prefix` characters of `bits`."""
    before = " ".join(bits[:prefix])
    after = " ".join(bits[prefix:])
    question = "Q: What is the XOR of all bits before this pause?"
    second = f" {after} {question}" if after else f" {question}"
    answer = str(bits[:prefix].count("1") % 2)
    return Example((f"Bits: {before}", second, ""), answer, phase, {"bits": prefix})
