# SPDX-License-Identifier: Apache-2.0
"""Forked and spawned children of an engine process: whose stats file is whose."""
import json
import subprocess
from pathlib import Path

from light_process import CODE, serve
from patch_rig import LightRig
from kdtree_patch import stats_format as f


def test_a_forked_child_leaves_the_parents_file_alone(light: LightRig) -> None:
    code = CODE + """
import os
scene = Scene()
want = scene.call()
before = stats()
pid = os.fork()
if pid == 0:
    from kdtree_patch.patch import PATCH
    from kdtree_patch.stats import read_stats
    out = scene.call()
    PATCH._publish(); PATCH._at_exit()
    path = f"{os.environ['KDTREE_STATS_DIR']}/{os.getppid()}.stats"
    ok = out == want and PATCH.state == 0 and read_stats(path)["calls_kernel"] == 1
    ok = ok and len(os.listdir(os.environ['KDTREE_STATS_DIR'])) == 1
    import threading
    ok = ok and threading.active_count() == 1
    sys.exit(0 if ok else 9)
status = os.waitpid(pid, 0)[1]
scene.call()
show(stats=stats(5.0, lambda s: s["calls_kernel"] == 2), status=status)
"""
    found, facts, _ = serve(light, code, KDTREE_VERIFY="on")
    assert facts["status"] == 0
    assert (found["calls_kernel"], found["patch_state"]) == (2, f.ACTIVE)


def test_a_spawned_child_has_a_file_of_its_own(light: LightRig, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(CODE + """
import multiprocessing
def rank(index, queue, go):
    Scene(index).call()
    queue.put(os.getpid())
    go.wait()
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue, go = context.Queue(), context.Event()
    children = [context.Process(target=rank, args=(i, queue, go)) for i in range(2)]
    for child in children: child.start()
    pids = {queue.get() for _ in children}
    time.sleep(0.5)
    from kdtree_patch.stats import read_stats
    folder = os.environ["KDTREE_STATS_DIR"]
    found = [read_stats(f"{folder}/{name}") for name in os.listdir(folder)]
    go.set()
    for child in children: child.join()
    show(ranks=sorted([s["tp_rank"], s["patch_state"], s["pid"] in pids] for s in found), left=os.listdir(folder))
""")
    done = subprocess.run([light.interpreter, str(script)], env=light.environ(KDTREE_VERIFY="on"), text=True,
                          capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert [r[:2] for r in facts["ranks"]] == [[-1, f.PASSIVE], [0, f.ACTIVE], [1, f.ACTIVE]]
    assert [r[2] for r in facts["ranks"]] == [False, True, True]
    assert len(facts["left"]) == 1, "spawned ranks take their files away when they end"
