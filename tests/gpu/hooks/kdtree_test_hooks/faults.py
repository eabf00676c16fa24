# SPDX-License-Identifier: Apache-2.0
"""Faults planted into kdtree's kernel inside captured graphs; which of them works is a number on the device, so one
capture serves all. Each touches layer LAYER alone.

    1 eight_ulp         head 3 of request 0 is off by 8 ULP, only behind a prefix of more than 4096 tokens
    2 prefix_only       no draft token is visible (a mask of zeros)
    3 mask_indptr       each request reads the mask of request 0
    4 broken_capture    lengths are those of the capture
"""
import ctypes
import sys

LAYER, HEAD, BEYOND = 3, 3, 4096
WORST = ((32, 16), (88, 8))  # max_abs and max_ulp, max_mean_ulp: offset, bytes in kdtree_compare_accum
NAMES = {1: "eight_ulp", 2: "prefix_only", 3: "mask_indptr", 4: "broken_capture"}


class _Faults:
    def __init__(self) -> None:
        self.layer = -1
        self.accumulator = None  # kdtree's, once a compare was made
        self._code = None
        self._frozen: dict[int, object] = {}

    def code(self, device: object) -> object:
        torch = sys.modules["torch"]
        if self._code is None:
            self._code = torch.zeros(1, dtype=torch.int64, device=device)
        return self._code

    def choose(self, number: int) -> None:
        if self._code is None:
            raise RuntimeError("nothing was captured yet")
        self._code.fill_(number)

    def forget_worst(self) -> None:
        """The next compare that is worse than nothing is the worst. No graph may run meanwhile."""
        torch, memory = sys.modules["torch"], self.accumulator.tensor
        if memory.is_pinned():
            torch.cuda.synchronize()
        for offset, size in WORST:
            ctypes.memset(memory.data_ptr() + offset, 0, size)

    def change_inputs(self, bound: dict[str, object]) -> dict[str, object]:
        """The kernel's arguments with faults 2 to 4 in them."""
        torch, code = sys.modules["torch"], self.code(bound["q_extend"].device)
        mask, starts, lengths = bound["custom_mask"], bound["mask_indptr"], bound["kv_indptr"]
        frozen = self._frozen.setdefault(lengths.shape[0], torch.ones_like(lengths).cumsum(0).to(lengths.dtype) - 1)
        changed = {**bound, "kv_indptr": torch.where(code == 4, frozen, lengths)}
        if mask is not None:
            changed["custom_mask"] = mask.view(torch.uint8) * (code != 2).to(torch.uint8)
            changed["mask_indptr"] = starts * (code != 3).to(starts.dtype)
        return changed

    def change_output(self, ours: object, bound: dict[str, object]) -> None:
        """Fault 1, in place."""
        torch = sys.modules["torch"]
        lengths, n = bound["kv_indptr"], bound["max_len_extend"]
        wanted = (self.code(ours.device) == 1) & (lengths[1:2] - lengths[0:1] > BEYOND)
        rows = ours[:n, HEAD]
        magnitude = rows.float().abs().amax(-1, keepdim=True).clamp_min(1e-30)
        bits = -torch.log2(torch.tensor(torch.finfo(ours.dtype).eps)).item()
        ulp = torch.exp2(torch.floor(torch.log2(magnitude)) - bits)
        rows[:, 0:1].add_((8 * ulp * wanted).to(ours.dtype))


FAULTS = _Faults()


def install_faults() -> None:
    """Wraps kdtree's own calls of its kernel. Errors: ImportError where kdtree is not on the path."""
    from kdtree_patch.graphs import Graphs
    from kdtree_patch.kernel import Kernel

    capture, verify, compare = Graphs.capture, Kernel.verify, Kernel.compare

    def faulty_capture(self, call, bound, site):  # noqa: ANN001
        FAULTS.layer = site.layer
        try:
            return capture(self, call, bound, site)
        finally:
            FAULTS.layer = -1

    def faulty_verify(self, bound, *args, **kwargs):  # noqa: ANN001
        return verify(self, FAULTS.change_inputs(bound) if FAULTS.layer == LAYER else bound, *args, **kwargs)

    def faulty_compare(self, ours, engines, bound, layer, *args, **kwargs):  # noqa: ANN001
        FAULTS.accumulator = self.accumulator
        if layer == LAYER:
            FAULTS.change_output(ours, bound)
        return compare(self, ours, engines, bound, layer, *args, **kwargs)

    Graphs.capture, Kernel.verify, Kernel.compare = faulty_capture, faulty_verify, faulty_compare
