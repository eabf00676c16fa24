# SPDX-License-Identifier: Apache-2.0
"""One process of the light engine and what it shows: its stats file, its answer, what it said."""
import json

from patch_rig import HERE, LightRig
from kdtree_patch import stats_format as f

CODE = f"""
import sys; sys.path.insert(0, {str(HERE)!r})
from light_scene import *
"""
SERVE = CODE + """
scene = Scene()
show(out=scene.call(), stats=stats() if "KDTREE_VERIFY" in os.environ else {})
"""


def serve(light: LightRig, code: str = SERVE, **changes: object) -> tuple[dict, dict, str]:
    """(stats, all facts, stderr) of one engine process."""
    done = light.run(code, **changes)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    return facts["stats"], facts, done.stderr


def refused(light: LightRig, said: str, **changes: object) -> dict:
    """The engine serves as without kdtree, one line says why, and so does the stats file."""
    plain = light.run(SERVE, KDTREE_VERIFY=None)
    found, facts, stderr = serve(light, **changes)
    assert (found["patch_state"], found["mode"]) == (f.REFUSED, f.OFF)
    assert said in found["reason"]
    assert len(stderr.splitlines()) == 1 and said in stderr, stderr
    assert facts["out"] == json.loads(plain.stdout)["out"]
    assert (found["calls_kernel"], found["calls_engine"], sum(found["handed_back"])) == (0, 0, 0)
    return found
