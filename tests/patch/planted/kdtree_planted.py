# SPDX-License-Identifier: Apache-2.0
"""Faults for tests, planted around kdtree_patch.kernel.Kernel in an engine process. Never part of a release.

This folder on PYTHONPATH is enough: SGLang loads it as a plugin in every process. KDTREE_PLANT says which fault:
    ulp:layer=3,request=1,head=5,beyond=4096,ulps=8   one head of one request in one layer, behind longer prefixes only
    prefix_only            the draft tokens' mask is taken for all zero
    mask_indptr            the starts of the requests' mask rows are n off
    capture_raises:batch=2,call=2    our kernel raises, in that call of a capture of that batch size
    capture_skips:batch=2            a capture of that batch size does not hold our kernel
All but `ulp` are right where no custom mask is, respectively outside of captures."""
import functools
import os

_DIGITS = {"torch.bfloat16": 7, "torch.float16": 10, "torch.float32": 23}
_zeros: dict = {}


def install() -> None:
    """The plugin's entry point. Idempotent."""
    name, _, rest = os.environ.get("KDTREE_PLANT", "").partition(":")
    from kdtree_patch.kernel import Kernel

    if not name or hasattr(Kernel.verify, "__planted__"):
        return
    options = {key: int(value) for key, value in (part.split("=") for part in rest.split(",") if part)}
    fault = {"ulp": _ulp, "prefix_only": _prefix_only, "mask_indptr": _mask_indptr, "capture_raises": _capture_raises,
             "capture_skips": _capture_skips}[name]
    fault(Kernel, **options)
    Kernel.verify.__planted__ = True


def _batch(bound: dict) -> int:
    return bound["qo_indptr"].shape[0] - 1


def _verify_with(kernel: type, change) -> None:  # noqa: ANN001
    """change(bound) gives the arguments that our kernel sees."""
    verify = kernel.verify

    @functools.wraps(verify)
    def planted(self, bound, *args, **kwargs):  # noqa: ANN001
        return verify(self, {**bound, **change(bound)}, *args, **kwargs)

    kernel.verify = planted


def _ulp(kernel: type, layer: int, request: int, head: int, beyond: int, ulps: int) -> None:
    compare, verify = kernel.compare, kernel.verify

    @functools.wraps(compare)
    def planted(self, ours, engines, bound, at, enable=None):  # noqa: ANN001
        if at == layer and request < _batch(bound):
            _nudge(ours, bound, request, head, beyond, ulps)
        return compare(self, ours, engines, bound, at, enable)

    @functools.wraps(verify)
    def same(self, *args, **kwargs):  # noqa: ANN001
        return verify(self, *args, **kwargs)

    kernel.compare, kernel.verify = planted, same


def _nudge(ours: object, bound: dict, request: int, head: int, beyond: int, ulps: int) -> None:
    """Adds to the first element of that head's rows, on the device, where the request's prefix is longer than `beyond`."""
    import torch

    n, starts = bound["max_len_extend"], bound["kv_indptr"]
    rows = ours.view(ours.shape[0], -1, 512)[request * n:(request + 1) * n, head]
    unit = torch.exp2(torch.floor(torch.log2(rows.float().abs().amax(-1, keepdim=True))) - _DIGITS[str(ours.dtype)])
    deep = starts[request + 1] - starts[request] > beyond
    first = rows[:, :1].float()
    rows[:, :1] = torch.where(deep, first + ulps * unit, first).to(ours.dtype)


def _prefix_only(kernel: type) -> None:
    def change(bound: dict) -> dict:
        mask = bound["custom_mask"]
        if mask is None:
            return {}
        key = mask.numel(), mask.dtype, mask.device
        if key not in _zeros:  # in the warm-up: a capture finds it
            _zeros[key] = mask.new_zeros(mask.shape)
        return {"custom_mask": _zeros[key]}

    _verify_with(kernel, change)


def _mask_indptr(kernel: type) -> None:
    def change(bound: dict) -> dict:
        import torch

        mask, starts = bound["custom_mask"], bound["mask_indptr"]
        if mask is None:
            return {}
        n = bound["max_len_extend"]
        in_graph = mask.device.type == "cuda" and torch.cuda.is_current_stream_capturing()  # its buffer is longer anyway
        return {"mask_indptr": starts + n, "custom_mask": mask if in_graph else torch.cat([mask, mask.new_zeros(n)])}

    _verify_with(kernel, change)


def _capture_raises(kernel: type, batch: int, call: int) -> None:
    from kdtree_patch import phase

    verify, calls = kernel.verify, []

    @functools.wraps(verify)
    def planted(self, bound, *args, **kwargs):  # noqa: ANN001
        if phase.is_recording(bound["q_extend"]) and _batch(bound) == batch:
            calls.append(1)
            if len(calls) == call:
                raise RuntimeError("planted: this capture breaks")
        return verify(self, bound, *args, **kwargs)

    kernel.verify = planted


def _capture_skips(kernel: type, batch: int) -> None:
    from kdtree_patch import phase

    verify = kernel.verify

    @functools.wraps(verify)
    def planted(self, bound, *args, **kwargs):  # noqa: ANN001
        if not phase.is_recording(bound["q_extend"]) or _batch(bound) != batch:
            verify(self, bound, *args, **kwargs)

    kernel.verify = planted
