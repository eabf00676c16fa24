# SPDX-License-Identifier: Apache-2.0
"""Random draft trees and what a verify step accepts of them. No tensors."""
from __future__ import annotations

import dataclasses
import random

VOCABULARY = 8  # small, so that a random draft is right now and then


@dataclasses.dataclass(frozen=True)
class Tree:
    """A draft tree in parent-before-child order. Node 0 is the last accepted token."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]  # parents[0] = -1

    def depths(self) -> list[int]:
        """Distance of each node from the root."""
        depth = [0] * len(self.parents)
        for node, parent in enumerate(self.parents[1:], 1):
            depth[node] = depth[parent] + 1
        return depth

    def visible(self) -> list[list[bool]]:
        """[node][node]: which draft tokens a node may attend: its ancestors and itself."""
        rows: list[list[bool]] = []
        for node, parent in enumerate(self.parents):
            row = list(rows[parent]) if parent >= 0 else [False] * len(self.parents)
            row[node] = True
            rows.append(row)
        return rows


def draft(root_token: int, size: int, seed: int) -> Tree:
    """A tree of `size` nodes whose siblings carry different tokens; the same seed gives the same tree."""
    chance = random.Random(seed)
    parents, tokens, used = [-1], [root_token], [set()]
    for _ in range(1, size):
        parent = chance.randrange(max(0, len(parents) - 4), len(parents))
        token = chance.choice([t for t in range(VOCABULARY) if t not in used[parent]])
        used[parent].add(token)
        parents.append(parent)
        tokens.append(token)
        used.append(set())
    return Tree(tuple(tokens), tuple(parents))


def synthetic_answer(tree: Tree, chance: random.Random) -> list[int]:
    """What verification of a synthetic request is taken to have said after each node: often a token of the draft."""
    answer = [chance.randrange(VOCABULARY) for _ in tree.parents]
    for node, parent in enumerate(tree.parents[1:], 1):
        if chance.random() < 0.5:
            answer[parent] = tree.tokens[node]
    return answer


def accept(tree: Tree, predicted: list[int]) -> tuple[list[int], int]:
    """Greedy verification. predicted[i] = the target's token after node i -> (accepted nodes, root first; bonus token)."""
    path = [0]
    while True:
        here = path[-1]
        child = next((node for node, parent in enumerate(tree.parents)
                      if parent == here and tree.tokens[node] == predicted[here]), None)
        if child is None:
            return path, predicted[here]
        path.append(child)
