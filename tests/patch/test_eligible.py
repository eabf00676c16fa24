# SPDX-License-Identifier: Apache-2.0
"""Binding to the engine's extend_attention_fwd, version by version."""
import pytest

from kdtree_patch import eligible
from kdtree_patch import stats_format as f
from kdtree_patch.contract import KERNEL_LEADING, KERNEL_NEUTRAL

FIRST = ", ".join(KERNEL_LEADING)


def kernel(rest: str) -> eligible.Signature:
    space: dict[str, object] = {}
    exec(f"def fwd({FIRST}{', ' + rest if rest else ''}): pass", space)
    return eligible.read_signature(space["fwd"])


def test_arguments_by_name_whatever_the_version_puts_after_the_thirteenth() -> None:
    old = kernel("sm_scale=None, logit_cap=0.0")
    new = kernel("k_scale, v_scale, sm_scale=None, logit_cap=0.0, page_size=1")
    assert old.bind((*range(13), 0.5), {})["sm_scale"] == 0.5
    bound = new.bind((*range(13), 1.0, 1.0, 0.5), {"page_size": 4})
    assert (bound["sm_scale"], bound["k_scale"], bound["page_size"], bound["logit_cap"]) == (0.5, 1.0, 4, 0.0)
    assert tuple(bound) == new.names, "in order: what is called positionally again depends on it"


@pytest.mark.parametrize("args, kwargs", [
    (tuple(range(12)), {}), (tuple(range(15)), {}), (tuple(range(13)), {"q_extend": 1}),
    (tuple(range(13)), {"unheard_of": 1})])
def test_calls_that_dont_fit(args: tuple, kwargs: dict[str, object]) -> None:
    assert kernel("sm_scale=None").bind(args, kwargs) is None


def test_a_kernel_that_takes_anything_has_no_signature() -> None:
    with pytest.raises(ValueError):
        eligible.read_signature(lambda *args: None)


def test_a_parameter_of_a_later_version_must_be_left_alone() -> None:
    later = kernel("sm_scale=None, brand_new=7, needed_too=None")
    assert eligible.check_signature(later, later.bind(tuple(range(13)), {})) is None
    assert eligible.check_signature(later, later.bind(tuple(range(13)), {"brand_new": 8})) == f.BACK_SIGNATURE
    demanding = kernel("sm_scale, brand_new")
    assert eligible.check_signature(demanding, demanding.bind(tuple(range(15)), {})) == f.BACK_SIGNATURE


@pytest.mark.parametrize("name, value", [("skip_prefix_custom_mask", False), ("lse_extend", object()),
                                         ("skip_prefix", True), ("skip_extend", True), ("window_kv_offsets", object())])
def test_half_an_attention_is_not_ours(name: str, value: object) -> None:
    neutral = KERNEL_NEUTRAL[name]
    fwd = kernel(f"sm_scale=None, {name}={neutral!r}")
    assert eligible.check_call(fwd.bind(tuple(range(13)), {name: value}), None) == f.BACK_SIGNATURE
