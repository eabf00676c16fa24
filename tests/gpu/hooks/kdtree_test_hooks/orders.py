# SPDX-License-Identifier: Apache-2.0
"""Orders from the test outside, one JSON file replaced by rename, looked at before each forward of the target model.

    {"id": 7,                        acknowledged by FILE.<tp rank>.done with the same id and what was done
     "record": "/path/run.npz",      record verify forwards from now on; the next order writes them there
     "text": "/path/text.npy",       teacher forcing: token of each absolute position, -1 = free; recording keeps all logits
     "fault": 3,                     see faults.py; 0 = none
     "fault_rank": 1,                in this TP rank alone; without it in all
     "forget_worst": true,           kdtree's accumulator forgets what was worst, and goes on counting
     "recapture": 5}                 capture the decode graphs that many times again

Every answer says how many verify forwards and how many of their rows (padding left out) this process has seen.
"""
import json
import os

from .recorder import Recorder


class _Orders:
    def __init__(self) -> None:
        self.path = os.environ["KDTREE_TEST_COMMAND"]
        self._seen = 0
        self.recorder: Recorder | None = None
        self.text = None
        self.forwards = self.rows = 0

    def count(self, forward_batch) -> None:  # noqa: ANN001
        if forward_batch.forward_mode.is_target_verify():
            self.forwards += 1
            self.rows += int(forward_batch.input_ids.shape[0])

    def look(self, runner) -> None:  # noqa: ANN001
        try:
            seen = os.stat(self.path).st_mtime_ns
        except OSError:
            return
        if seen == self._seen:
            return
        self._seen = seen
        with open(self.path, encoding="utf-8") as file:
            order = json.load(file)
        answer: dict[str, object] = {"id": order["id"], "verify_forwards": self.forwards, "verify_rows": self.rows}
        rank = runner.ps.tp_rank
        try:
            self._obey(order, runner, rank, answer)
        except Exception as error:  # the test sees it; the server goes on
            answer["error"] = repr(error)
        done = f"{self.path}.{rank}.done"
        with open(done + ".new", "w", encoding="utf-8") as file:
            json.dump(answer, file)
        os.rename(done + ".new", done)

    def _obey(self, order: dict, runner, rank: int, answer: dict[str, object]) -> None:  # noqa: ANN001
        if self.recorder is not None:
            answer["steps"] = self.recorder.save()
            self.recorder = None
        self.text = None
        if order.get("text"):
            import numpy

            self.text = numpy.load(order["text"])
        if order.get("record") and rank == 0:
            self.recorder = Recorder(order["record"], self.text)
        if "fault" in order and order.get("fault_rank", rank) == rank:
            from .faults import FAULTS

            FAULTS.choose(int(order["fault"]))
        if order.get("forget_worst"):
            from .faults import FAULTS

            FAULTS.forget_worst()
        for _ in range(int(order.get("recapture", 0))):
            runner.init_decode_cuda_graph()
            answer["recaptured"] = int(answer.get("recaptured", 0)) + 1


_orders: _Orders | None = None


def around_forward(original, self, forward_batch, *args, **kwargs):  # noqa: ANN001
    """ModelRunner.forward of the target model."""
    global _orders
    if getattr(self, "is_draft_worker", False):
        return original(self, forward_batch, *args, **kwargs)
    if _orders is None:
        _orders = _Orders()
    _orders.look(self)
    _orders.count(forward_batch)
    result = original(self, forward_batch, *args, **kwargs)
    if _orders.recorder is not None:
        _orders.recorder.see(forward_batch, result.logits_output)
    if _orders.text is not None:
        from .recorder import force

        force(_orders.text, forward_batch, result.logits_output)
    return result
