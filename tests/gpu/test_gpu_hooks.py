# SPDX-License-Identifier: Apache-2.0
"""What runs inside the server: weights, recorder, forcing, ceiling, orders; and the analysis of what was recorded."""
import json
from types import SimpleNamespace

import numpy
import pytest
import torch
from kdtree_test_hooks import ceiling, orders, recorder, weights
from live_engine import agree
from live_engine.orders import Orders


class Mode:
    """SGLang's ForwardMode, as far as it is asked."""

    def __init__(self, verify: bool):
        self._verify = verify

    def is_target_verify(self) -> bool:
        return self._verify

    def is_extend(self) -> bool:
        return not self._verify


PREFIX, N = 10, 3
TREE = numpy.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=bool)  # two children of the root


def verify_batch(tokens: list[int], positions: list[int]) -> SimpleNamespace:
    mask = torch.ones(N, PREFIX + N, dtype=torch.bool)
    mask[:, PREFIX:] = torch.from_numpy(TREE)
    return SimpleNamespace(forward_mode=Mode(True), seq_lens=torch.tensor([PREFIX]), batch_size=1,
                           input_ids=torch.tensor(tokens), positions=torch.tensor(positions),
                           spec_info=SimpleNamespace(custom_mask=mask.flatten()))


def test_tree_of_a_mask_and_of_a_chain():
    batch = verify_batch([1, 2, 3], [10, 11, 11])
    assert (recorder.tree_of(batch.spec_info.custom_mask, [PREFIX], N)[0] == TREE).all()
    assert (recorder.tree_of(None, [PREFIX, 5], N) == numpy.tril(numpy.ones((N, N), bool))).all()


def test_a_node_is_on_the_text_with_all_its_ancestors():
    text = numpy.arange(100, 130)
    positions = numpy.array([[10, 11, 12]])
    chain = numpy.tril(numpy.ones((1, 3, 3), bool))
    assert recorder.on_text(numpy.array([[110, 111, 112]]), positions, chain, text).tolist() == [[True, True, True]]
    assert recorder.on_text(numpy.array([[110, 7, 112]]), positions, chain, text).tolist() == [[True, False, False]]
    assert recorder.on_text(numpy.array([[110, 7, 111]]), numpy.array([[10, 11, 11]]), TREE[None], text).tolist() == [
        [True, False, True]]
    assert recorder.on_text(numpy.array([[110]]), numpy.array([[400]]), chain[:, :1, :1], text).tolist() == [[False]]


def test_forcing_makes_the_next_token_the_best():
    text = numpy.arange(100, 130)
    logits = torch.zeros(N, 200)
    recorder.force(text, verify_batch([110, 111, 7], [10, 11, 11]), SimpleNamespace(next_token_logits=logits))
    assert logits.argmax(-1).tolist() == [111, 112, 112]
    logits = torch.zeros(1, 200)
    prefill = SimpleNamespace(forward_mode=Mode(False), seq_lens=torch.tensor([20]), batch_size=1)
    recorder.force(text, prefill, SimpleNamespace(next_token_logits=logits))
    assert logits.argmax(-1).tolist() == [120]


def test_recorded_logits_are_found_again(tmp_path):
    text = numpy.arange(100, 130)
    recorded = recorder.Recorder(str(tmp_path / "r.npz"), text)
    logits = torch.randn(N, 200)
    recorded.see(verify_batch([110, 111, 7], [10, 11, 11]), SimpleNamespace(next_token_logits=logits))
    assert recorded.save() == 1
    steps = agree.read_steps(tmp_path / "r.npz")
    found = agree.logits_by_position(steps)
    assert sorted(found) == [10, 11] and numpy.allclose(found[11], logits[1].numpy())
    ids, values = agree.best_after(steps, text[:12].tolist())
    assert ids[0] == int(logits[1].argmax()) and values[0] == pytest.approx(float(logits[1].max()))
    assert agree.best_after(steps, text[:14].tolist()) is None


def step_with(token: int, position: int, ids: list[int], values: list[float]) -> dict:
    return {"tokens": numpy.array([[token]]), "positions": numpy.array([[position]]),
            "trees": numpy.ones((1, 1, 1), bool), "ids": numpy.array([[ids]]), "values": numpy.array([[values]])}


def test_a_first_difference_comes_with_its_margins():
    prompt = [5, 6]
    ours = [step_with(7, 2, [8, 9, 1, 2], [3.0, 2.5, 0.0, 0.0])]
    theirs = [step_with(7, 2, [9, 8, 1, 2], [2.9, 2.8, 0.0, 0.0])]
    assert agree.describe_difference(prompt, [7, 8], [7, 8], ours, theirs) is None
    found = agree.describe_difference(prompt, [7, 8], [7, 9], ours, theirs)
    assert found == {"token": 1, "position": 3, "ids": [8, 9], "margin_first": 0.5, "margin_second": 0.1, "moved": 0.6}


def test_logits_are_compared_position_by_position():
    one = {p: numpy.array([0.0, 1.0, 3.0]) for p in range(4)}
    other = {**one, 2: numpy.array([0.0, 3.5, 3.0]), 9: numpy.zeros(3)}
    found = agree.compare_logits(one, other)
    assert (found["positions"], found["best_differs"], found["max_abs"]) == (4, 1, 2.5)
    assert found["margins_where_best_differs"] == [2.0] and found["kl_max"] > 0
    assert agree.compare_logits(one, one)["kl_max"] == 0
    assert found["kl_mean_by_temperature"]["0.3"] > found["kl_mean_by_temperature"]["0.7"] > found["kl_mean"]
    halves, quarters = numpy.log([[0.5, 0.5]]), numpy.log([[0.25, 0.75]])
    assert agree.divergence(halves, quarters)[0] == pytest.approx(0.5 * numpy.log(2) + 0.5 * numpy.log(2 / 3))
    assert agree.divergence(2 * halves, 2 * quarters, 2)[0] == pytest.approx(agree.divergence(halves, quarters)[0])
    with pytest.raises(ValueError):
        agree.compare_logits(one, {})


def test_weights_are_seeded_and_of_useful_size(monkeypatch):
    monkeypatch.setenv("KDTREE_TEST_WEIGHTS", "1")
    monkeypatch.setenv("KDTREE_TEST_SKEW", "2-3")

    def model() -> torch.nn.Module:
        made = torch.nn.ModuleDict({"embed_tokens": torch.nn.Embedding(500, 256), "layers": torch.nn.ModuleList(
            [torch.nn.ModuleDict({"o_proj": torch.nn.Linear(256, 256, bias=False), "norm": torch.nn.LayerNorm(256),
                                  "q_b_proj": torch.nn.Linear(256, 256, bias=False)}) for _ in range(2)])})
        made.register_parameter("e_score_correction_bias", torch.nn.Parameter(torch.full((8,), 9.0)))
        weights.around_dummy_weights(None, made.requires_grad_(False))
        return made

    state, again = model().state_dict(), model().state_dict()
    assert all(torch.equal(state[name], again[name]) for name in state)
    assert state["embed_tokens.weight"].std().item() == pytest.approx(1.0, rel=0.02)
    assert state["layers.0.q_b_proj.weight"].std().item() == pytest.approx(2 / 16, rel=0.03)
    assert state["layers.1.o_proj.weight"].std().item() == pytest.approx(1 / 16 / 2, rel=0.03)
    assert not torch.equal(state["layers.0.o_proj.weight"], state["layers.1.o_proj.weight"])
    assert state["layers.0.norm.weight"].eq(1).all() and state["layers.0.norm.bias"].eq(0).all()
    assert state["e_score_correction_bias"].tolist() == [0, 0, 100, 100, 0, 0, 0, 0]


def test_what_the_ceiling_leaves_out(monkeypatch):
    monkeypatch.delenv("KDTREE_TEST_CEILING", raising=False)
    monkeypatch.setenv("KDTREE_TEST_SKIP_PREFILL", "66000")
    assert not ceiling.skips(True, 0) and not ceiling.skips(False, 65999) and ceiling.skips(False, 66000)
    monkeypatch.setenv("KDTREE_TEST_CEILING", "1")
    assert ceiling.skips(True, 0)


def test_prefill_beyond_a_prefix_costs_nothing_on_the_servers_that_are_timed():
    from live_engine import plans

    assert plans.TIMED["KDTREE_TEST_SKIP_PREFILL"] == "20000" and plans.CEILING["KDTREE_TEST_SKIP_PREFILL"] == "1"


def test_an_order_is_obeyed_once_and_acknowledged(stream, tmp_path, monkeypatch):
    outside = Orders(tmp_path / "orders.json")
    monkeypatch.setenv("KDTREE_TEST_COMMAND", outside.environ()["KDTREE_TEST_COMMAND"])
    inside, captured = orders._Orders(), []
    runner = SimpleNamespace(ps=SimpleNamespace(tp_rank=0), init_decode_cuda_graph=lambda: captured.append(1))
    batch = verify_batch([1, 2, 3], [10, 11, 11])
    inside.count(batch)
    chunks = stream.chunks

    def forward(body: dict):  # each request makes the engine look
        inside.look(runner)
        inside.look(runner)
        return chunks(body)

    monkeypatch.setattr(stream, "chunks", forward)
    answer = outside.give(stream.url, recapture=3)
    assert answer == {"id": 1, "verify_forwards": 1, "verify_rows": 3, "recaptured": 3} and len(captured) == 3
    with pytest.raises(RuntimeError, match="No such file"):
        outside.give(stream.url, text=str(tmp_path / "missing.npy"))
    assert json.loads((tmp_path / "orders.json.0.done").read_text())["id"] == 2


def test_a_fault_is_planted_in_one_rank_where_one_is_named(tmp_path, monkeypatch):
    from kdtree_test_hooks import faults

    file, planted = tmp_path / "orders.json", []
    monkeypatch.setenv("KDTREE_TEST_COMMAND", str(file))
    for order in ({"id": 1, "fault": 1, "fault_rank": 1}, {"id": 2, "fault": 0}):
        file.write_text(json.dumps(order))
        for rank in (0, 1):
            monkeypatch.setattr(faults.FAULTS, "choose", lambda number, rank=rank: planted.append((rank, number)))
            orders._Orders().look(SimpleNamespace(ps=SimpleNamespace(tp_rank=rank)))
    assert planted == [(1, 1), (0, 0), (1, 0)]
