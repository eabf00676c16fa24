# SPDX-License-Identifier: Apache-2.0
"""Keeps what target verify computed: each node's token, position, ancestors and best logits."""
import numpy
import torch

TOP = 4


def tree_of(custom_mask: torch.Tensor | None, seq_lens: list[int], n: int) -> numpy.ndarray:
    """bool [requests, n, n]: node j is node i or one of its ancestors. custom_mask: per request n rows of prefix + n
    columns, flat; None = a chain."""
    trees = numpy.tril(numpy.ones((len(seq_lens), n, n), dtype=bool))
    if custom_mask is None:
        return trees
    at = 0
    for i, prefix in enumerate(seq_lens):
        size = n * (prefix + n)
        trees[i] = custom_mask[at:at + size].view(n, prefix + n)[:, prefix:].bool().cpu().numpy()
        at += size
    return trees


def on_text(tokens: numpy.ndarray, positions: numpy.ndarray, trees: numpy.ndarray, text: numpy.ndarray) -> numpy.ndarray:
    """bool [requests, n]: the node and all its ancestors are what `text` has at their positions."""
    inside = positions < len(text)
    same = inside & (tokens == text[numpy.minimum(positions, len(text) - 1)])
    return ~(trees & ~same[:, None, :]).any(-1)


class Recorder:
    """see() is called after each forward; the copies wait for the GPU: never while something is timed."""

    def __init__(self, path: str, text: numpy.ndarray | None):
        self._path, self._text = path, text
        self._steps: list[dict[str, numpy.ndarray]] = []

    def see(self, batch, logits_output) -> None:  # noqa: ANN001
        """Target verify alone."""
        if not batch.forward_mode.is_target_verify():
            return
        logits = logits_output.next_token_logits
        seq_lens = batch.seq_lens.tolist()
        requests = len(seq_lens)
        n = logits.shape[0] // requests
        rows = requests * n
        tokens = batch.input_ids[:rows].view(requests, n).cpu().numpy()
        positions = batch.positions[:rows].view(requests, n).cpu().numpy()
        trees = tree_of(getattr(batch.spec_info, "custom_mask", None), seq_lens, n)
        best = torch.topk(logits.float(), TOP, dim=-1)
        step = {"tokens": tokens, "positions": positions, "trees": trees,
                "ids": best.indices.view(requests, n, TOP).cpu().numpy(),
                "values": best.values.view(requests, n, TOP).cpu().numpy()}
        if self._text is not None:
            keep = on_text(tokens, positions, trees, self._text).reshape(-1)
            step["kept_positions"] = positions.reshape(-1)[keep]
            step["kept_logits"] = logits[torch.from_numpy(keep).to(logits.device)].float().cpu().numpy()
        self._steps.append(step)

    def save(self) -> int:
        """Writes all steps; returns how many."""
        arrays = {f"{i}/{name}": value for i, step in enumerate(self._steps) for name, value in step.items()}
        with open(self._path, "wb") as file:
            numpy.savez(file, **arrays)
        return len(self._steps)


def force(text: numpy.ndarray, batch, logits_output) -> None:  # noqa: ANN001
    """Makes the token that follows each position in `text` the best one, so that the engine goes along the text."""
    logits = logits_output.next_token_logits
    if batch.forward_mode.is_target_verify():
        following = batch.positions[:logits.shape[0]].cpu().numpy() + 1
    elif batch.forward_mode.is_extend() and logits is not None and logits.shape[0] == batch.batch_size:
        following = batch.seq_lens.cpu().numpy()
    else:
        return
    wanted = numpy.where(following < len(text), text[numpy.minimum(following, len(text) - 1)], -1)
    rows = numpy.nonzero(wanted >= 0)[0]
    logits[torch.from_numpy(rows).to(logits.device), torch.from_numpy(wanted[rows]).long().to(logits.device)] = 1e4
