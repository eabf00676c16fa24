# SPDX-License-Identifier: Apache-2.0
"""What a rank computes, as the process model sees it. heavy/model.py and light/model.py implement it."""
from __future__ import annotations

import dataclasses
import random
import zlib
from typing import Any, Protocol

from serving.tree import Tree, draft


@dataclasses.dataclass(eq=False)
class Request:
    """One sequence on one rank. `cache` belongs to the model (slots, pool row)."""

    id: int
    prompt: list[int]
    max_new_tokens: int
    synthetic: bool = False
    output: list[int] = dataclasses.field(default_factory=list)
    steps: int = 0
    cache: Any = None

    @property
    def done(self) -> bool:
        """Has all the tokens that were asked for."""
        return len(self.output) >= self.max_new_tokens

    def draft_tree(self, size: int) -> Tree:
        """The next step's draft: a function of the prompt and the step alone, so that runs repeat."""
        seed = zlib.crc32(repr(self.prompt).encode()) * 1_000_003 + self.steps
        return draft(self.output[-1], size, seed)


class Model(Protocol):
    """One rank's model. Any exception ends the engine, as in SGLang.

    busy_share -- the most of one core that synthetic steps may take, whatever --steps-per-second asks for.
    """

    busy_share: float

    def join(self) -> None:
        """The ranks' process groups."""

    def load(self) -> None:
        """Weights."""

    def make_cache(self) -> None:
        """KV pool and attention backend; logs the pool's line as SGLang does."""

    def warm_up(self, batch: int) -> None:
        """One verify step of `batch` synthetic requests, as a capture would run it."""

    def info(self) -> dict[str, int]:
        """max_total_num_tokens and the like, for the launcher and the log."""

    def prefill(self, request: Request) -> int:
        """Fills the KV cache with the prompt. Returns the first new token."""

    def verify(self, requests: list[Request], trees: list[Tree]) -> list[list[int]]:
        """One target-verify step -> for each request the token after each node of its tree."""

    def commit(self, requests: list[Request], accepted: list[list[int]]) -> None:
        """Keeps the KV of the accepted nodes of the last verify, frees the others."""

    def release(self, request: Request) -> None:
        """Frees everything that the request holds."""


def random_prompt(chance: random.Random, vocabulary: int, longest: int) -> list[int]:
    """A synthetic prompt of 1 to `longest` tokens."""
    return [chance.randrange(vocabulary) for _ in range(chance.randint(1, longest))]
