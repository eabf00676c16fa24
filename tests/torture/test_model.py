# SPDX-License-Identifier: Apache-2.0
"""Short random walks of verbs and faults; `model.py --walks N` makes long ones."""

from __future__ import annotations

import pytest

from model import Deployed, Model, walk


@pytest.mark.parametrize("seed", [2])
def test_a_walk(bench, seed):
    bench.drop(with_disk=True)
    said, broken = walk(bench.host(with_disk=True), seed, steps=8)
    bench.drop(with_disk=True)
    assert not broken, "\n".join([*said, *broken])


def test_the_model_is_what_the_manual_says():
    model = Model()
    for verb, carried_out, now in [
            ("off", False, Deployed()), ("rollback", False, Deployed()), ("deploy", True, Deployed("off")),
            ("validate", True, Deployed("validate")), ("rollback", True, Deployed("off")), ("rollback", False, Deployed("off")),
            ("cold", True, Deployed("off", True)), ("validate", True, Deployed("validate")), ("rollback", True, Deployed("off", True)),
            ("uninstall", True, Deployed())]:
        done, model = model.after(verb)
        assert (done, model.now) == (carried_out, now), verb
