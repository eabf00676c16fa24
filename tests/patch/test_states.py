# SPDX-License-Identifier: Apache-2.0
"""Passive, active, refused: with the light engine's processes. Numbers are test_verify.py's."""
import json
import os
from pathlib import Path

import pytest

from patch_rig import HERE, LIGHT, SITE, LightRig, light_engine
from kdtree_patch import stats_format as f
from kdtree_patch.control import pack_control
from kdtree_patch.env import environment_digest
from kdtree_patch.stats import read_stats

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


def test_active_and_armed(light: LightRig) -> None:
    found, facts, stderr = serve(light, KDTREE_VERIFY="validate")
    assert (found["patch_state"], found["mode"], found["reason"], stderr) == (f.ACTIVE, f.VALIDATE, "", "")
    assert (found["tp_rank"], found["tp_size"], found["moe_ep_rank"], found["moe_ep_size"]) == (0, 2, 0, 2)
    assert (found["release_id"], found["torch_version"], found["device_name"]) == ("r1", "2.11.0+light", "cpu")
    assert found["engine_version"] == "0.5.17+light" and found["engine_fingerprint"] == light_engine().fingerprint
    assert found["library_sha256"] == light.manifest["files"]["lib/libkdtree_torch.so"]
    assert found["environment_sha256"] == environment_digest(light.environ(KDTREE_VERIFY="validate"))
    assert (found["calls_engine"], found["calls_kernel"], found["compares"], found["mismatches"]) == (1, 0, 1, 0)
    assert (found["graphs"], found["longest_prefix"], found["batches"]) == (0, 6, {"1": [1, 1]})
    assert found["start_mode"] == f.VALIDATE
    assert light.stats_files() == [], "a process that ends takes its file away"


@pytest.mark.parametrize("mode, kernel, engine, compares",
                         [("off", 0, 1, 0), ("validate", 0, 1, 1), ("on", 1, 0, 0)])
def test_modes(light: LightRig, mode: str, kernel: int, engine: int, compares: int) -> None:
    found, facts, _ = serve(light, KDTREE_VERIFY=mode)
    assert (found["calls_kernel"], found["calls_engine"], found["compares"]) == (kernel, engine, compares)
    assert sum(found["handed_back"]) == 0
    plain = light.run(SERVE, KDTREE_VERIFY=None)
    assert facts["out"] == json.loads(plain.stdout)["out"]


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


def test_no_library(light: LightRig) -> None:
    light.library.unlink()
    refused(light, f"release file {light.library}: No such file", KDTREE_VERIFY="on")


def test_another_file_than_the_manifest_lists(light: LightRig) -> None:
    light.library.write_bytes(light.library.read_bytes() + b"\0")
    refused(light, "is not the file that its manifest lists", KDTREE_VERIFY="on")


def test_a_library_that_does_not_load(light: LightRig) -> None:
    light.library.write_bytes(b"no shared object")
    light.write_manifest(files={})
    refused(light, "can't be loaded", KDTREE_VERIFY="on")


def test_no_kernel_package(light: LightRig) -> None:
    (light.python / "kdtree_kernel").unlink()
    refused(light, "No module named 'kdtree_kernel'", KDTREE_VERIFY="on")


@pytest.mark.parametrize("version", ["2.13.0", "2.11.1+light", "2.11.0", ""])
def test_another_torch(light: LightRig, version: str) -> None:
    light.write_manifest(torch=version)
    refused(light, f"built for torch {version or 'unknown'}, the engine runs 2.11.0+light", KDTREE_VERIFY="on")


def test_another_engine_than_the_release_was_made_for(light: LightRig) -> None:
    """An accepted one (as a known one would be), put in the place of that of the deploy while the release stays."""
    light.write_manifest(engine_version="0.5.16", engine_fingerprint="5" * 64)
    found = refused(light, f"made for engine 0.5.16 (fingerprint {'5' * 16}), this is 0.5.17+light "
                    f"({light_engine().fingerprint[:16]}): deploy again", KDTREE_VERIFY="on")
    assert (found["tp_rank"], found["release_id"], found["torch_version"]) == (0, "r1", "2.11.0+light"), "whose it is"


def test_a_manifest_without_an_engine_fits_none(light: LightRig) -> None:
    del light.manifest["engine_fingerprint"]
    light.write_manifest()
    refused(light, "made for engine 0.5.17+light (fingerprint ), this is", KDTREE_VERIFY="on")


@pytest.mark.parametrize("version, fits", [("3.11.9", True), ("3.12.2", False), ("", False)])
def test_another_python(light: LightRig, version: str, fits: bool) -> None:
    light.write_manifest(python_version=version)
    if fits:
        assert serve(light, KDTREE_VERIFY="on")[0]["patch_state"] == f.ACTIVE
    else:
        refused(light, f"made for Python {version or 'unknown'}, the engine runs 3.11", KDTREE_VERIFY="on")


NVRM = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U22-I3)  Tue Jul 2\n"


@pytest.mark.parametrize("made_for, file, fits", [
    ("580.159.04", NVRM.format("580.159.04"), True), ("580.159.04", NVRM.format("590.44.01"), False),
    ("570.86", NVRM.format("580.82"), False), ("", NVRM.format("590.44.01"), True), ("580.159.04", None, True),
    ("580.159.04", "something else\n", True)])
def test_another_driver(light: LightRig, tmp_path: Path, made_for: str, file: str | None, fits: bool) -> None:
    """Unknown on one side is not another."""
    place = tmp_path / "driver"
    if file is not None:
        place.write_text(file)
    code = SERVE.replace("scene = ", f"import kdtree_patch.release as r; r.DRIVER_FILE = {str(place)!r}\nscene = ", 1)
    light.write_manifest(driver=made_for)
    found, _, _ = serve(light, code, KDTREE_VERIFY="on")
    assert found["patch_state"] == (f.ACTIVE if fits else f.REFUSED)
    if not fits:
        assert found["reason"].startswith(f"made for driver {made_for}, this host runs 5") and found["tp_rank"] == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"release": 3}'])
def test_a_manifest_that_says_nothing(light: LightRig, text: str) -> None:
    (light.release / "manifest.json").write_text(text)
    refused(light, "release manifest", KDTREE_VERIFY="on")


@pytest.mark.parametrize("accepted", [None, "0" * 64, light_engine().fingerprint[:-1]])
def test_an_engine_that_nobody_accepted(light: LightRig, accepted: str | None) -> None:
    found = refused(light, "unknown engine 0.5.17+light, fingerprint " + light_engine().fingerprint[:16],
                    KDTREE_ACCEPT_ENGINE=accepted, KDTREE_VERIFY="on")
    assert "differs (compared with sglang 0.5.17)" in found["reason"]


def test_acceptance_doesnt_help_where_the_signatures_dont_bind(light: LightRig, tmp_path: Path) -> None:
    site = tmp_path / "site"
    os.makedirs(site)
    os.system(f"cp -r {LIGHT}/lib/python3.11/site-packages/sglang {site}/sglang")
    kernel = site / "sglang/kernels/ops/attention/extend_attention.py"
    kernel.write_text(kernel.read_text().replace("q_extend", "q_new"))
    from kdtree_patch.fingerprint import examine
    changed = examine(str(site / "sglang"))
    assert not changed.binds
    found = refused(light, "can't be patched: extend_attention_fwd takes (q_new", path=str(site), KDTREE_VERIFY="on",
                    KDTREE_ACCEPT_ENGINE=changed.fingerprint)
    assert found["engine_fingerprint"] == changed.fingerprint


@pytest.mark.parametrize("name, value, said", [
    ("KDTREE_VERIFY", "maybe", "KDTREE_VERIFY='maybe': expected one of off, validate, on"),
    ("KDTREE_LIB", "lib.so", "KDTREE_LIB='lib.so': expected the absolute path"),
    ("KDTREE_LIB", None, "KDTREE_LIB='': expected the absolute path"),
    ("KDTREE_NSPLIT", "many", "KDTREE_NSPLIT='many': expected nothing or a number from 1 to 1024"),
    ("KDTREE_DEFRAG_SORT", "yes", "KDTREE_DEFRAG_SORT='yes': expected one of 0, 1"),
    ("KDTREE_MAX_ULP", "-1", "KDTREE_MAX_ULP='-1': expected a number above 0")])
def test_an_environment_that_cant_be_used(light: LightRig, name: str, value: str | None, said: str) -> None:
    refused(light, said, **{name: value})


@pytest.mark.parametrize("spoil", ["missing", "world_writable", "file"])
def test_without_a_stats_file_nothing_is_patched(light: LightRig, spoil: str) -> None:
    light.stats.rmdir()
    if spoil == "world_writable":
        light.stats.mkdir()
        light.stats.chmod(0o777)
    elif spoil == "file":
        light.stats.write_text("")
    code = CODE + "out = Scene().call()\nfrom kdtree_patch.patch import PATCH\nshow(state=PATCH.state, out=out)"
    done = light.run(code, KDTREE_VERIFY="on")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == f.REFUSED
    assert len(done.stderr.splitlines()) == 1 and "nothing is patched unseen" in done.stderr


def test_a_launcher_is_passive_and_no_rank(light: LightRig) -> None:
    found, _, stderr = serve(light, CODE + "show(stats=stats())", KDTREE_VERIFY="on")
    assert (found["patch_state"], found["mode"], found["tp_rank"], stderr) == (f.PASSIVE, f.OFF, -1, "")
    assert "no attention backend" in found["reason"]


def test_a_draft_backend_alone_makes_no_rank(light: LightRig) -> None:
    code = CODE + """
from kdtree_patch.patch import PATCH
scene = Scene(draft=True)
scene.call()
show(stats=stats())
"""
    found, _, _ = serve(light, code, KDTREE_VERIFY="on", KDTREE_DEFRAG_SORT="0")
    assert found["handed_back"][f.BACK_ATTENTION_TYPE] == 1 and found["calls_kernel"] == 0


# both ways in

PLUGIN = """
import sys, importlib
BEFORE = {before}
if BEFORE:
    from sglang.srt.plugins import load_plugins
    load_plugins()
""" + CODE + """
if not BEFORE:
    from sglang.srt.plugins import load_plugins
    load_plugins()
from kdtree_patch import bootstrap, install
bootstrap(); install(); install()
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
def depth(function):
    count = 0
    while hasattr(function, "__wrapped__"):
        function, count = function.__wrapped__, count + 1
    return count
scene = Scene()
out = scene.call()
show(stats=stats(), out=out, hooks=sum(type(x).__name__ == "_Finder" for x in sys.meta_path),
     depths=[depth(TritonAttnBackend.forward_extend), depth(TritonAttnBackend.__init__),
             depth(TokenToKVPoolAllocator.__init__), depth(topk.select_experts),
             depth(topk.capture_routed_experts_if_allowed)])
"""


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("sitecustomize", [True, False])
def test_each_way_in_patches_once(light: LightRig, tmp_path: Path, before: bool, sitecustomize: bool) -> None:
    """Entry point by PYTHONPATH alone, with the hook before it, after it, or not run (another sitecustomize hides it)."""
    path = ""
    if not sitecustomize:
        (tmp_path / "hides").mkdir()
        (tmp_path / "hides" / "sitecustomize.py").write_text("")
        path = str(tmp_path / "hides")
    found, facts, stderr = serve(light, PLUGIN.format(before=before), path=path, KDTREE_VERIFY="on")
    assert stderr == ""
    assert facts["depths"] == [1, 1, 1, 1, 1] and facts["hooks"] == 1
    assert (found["patch_state"], found["calls_kernel"]) == (f.ACTIVE, 1)


def test_the_entry_point_does_nothing_without_the_variable(light: LightRig) -> None:
    code = PLUGIN.format(before=True).split("from kdtree_patch import bootstrap")[0] + """
print(sorted(m for m in sys.modules if m.startswith("kdtree")), TritonAttnBackend.forward_extend.__qualname__,
      hasattr(TritonAttnBackend.forward_extend, "__wrapped__"))
"""
    done = light.run(code, KDTREE_VERIFY=None)
    assert done.stdout.strip() == "['kdtree_patch'] TritonAttnBackend.forward_extend False", done.stderr
    assert light.stats_files() == []


def test_dist_info_carries_the_projects_version() -> None:
    text = (SITE.parent / "CMakeLists.txt").read_text()
    version = text.split("project(kdtree VERSION ")[1].split()[0]
    assert f"Version: {version}\n" in (SITE / f"kdtree-{version}.dist-info" / "METADATA").read_text()
    listed = (SITE / "CMakeLists.txt").read_text()
    for path in [*(SITE / "kdtree_patch").glob("*.py"), *(SITE / "kdtree_patch").glob("*.json")]:
        assert f"kdtree_patch/{path.name}\n" in listed, f"{path.name} is not installed"


# live modes

LIVE = CODE + """
scene = Scene()
scene.call()
for line in sys.stdin:
    want = json.loads(line)
    found = stats(3.0, lambda s: all(s[k] == v for k, v in want.items()))
    scene.call()
    show(stats=found)
""".replace("for line", "import json\nfor line")


class Live:
    """An engine process that makes a call and shows its stats each time it is asked."""

    def __init__(self, light: LightRig, **changes: str | None):
        import subprocess
        self.process = subprocess.Popen([light.interpreter, "-c", LIVE], env=light.environ(**changes), text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def wait_for(self, **fields: object) -> dict:
        self.process.stdin.write(json.dumps(fields) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["stats"]

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate(timeout=30)


def test_an_armed_worker_follows_the_control_file(light: LightRig) -> None:
    with Live(light, KDTREE_VERIFY="off") as live:
        found = live.wait_for(mode=f.OFF)
        assert (found["mode"], found["control_generation"], found["calls_engine"]) == (f.OFF, 0, 1)
        light.write_control(f.VALIDATE, 5)
        found = live.wait_for(mode=f.VALIDATE)
        assert (found["mode"], found["control_generation"]) == (f.VALIDATE, 5)
        light.write_control(f.ON, 6, "r1")
        found = live.wait_for(mode=f.ON)
        assert (found["mode"], found["control_generation"], found["compares"]) == (f.ON, 6, 1)
        light.control.unlink()
        found = live.wait_for(calls_kernel=1)
        assert (found["mode"], found["calls_kernel"], found["control_generation"]) == (f.ON, 1, 6)


def test_the_control_file_holds_over_the_environment_at_start(light: LightRig) -> None:
    light.write_control(f.OFF, 9)
    with Live(light, KDTREE_VERIFY="on") as live:
        found = live.wait_for(control_generation=9)
        assert (found["mode"], found["calls_kernel"], found["calls_engine"]) == (f.OFF, 0, 1)


@pytest.mark.parametrize("spoil, said", [
    (lambda path, raw: path.write_bytes(raw[:50]), "50 bytes"),
    (lambda path, raw: path.write_bytes(raw[:60] + b"x" + raw[61:]), "checksum"),
    (lambda path, raw: (path.write_bytes(raw), path.chmod(0o666)), "writable by others"),
    (lambda path, raw: (path.with_suffix(".real").write_bytes(raw), path.symlink_to(path.with_suffix(".real"))),
     "control file"),
    (lambda path, raw: os.mkfifo(path, 0o644), "not a regular file"),
    (lambda path, raw: path.write_bytes(pack_control(f.ON, 3, "other")), "for release other, this is r1")])
def test_a_control_file_that_isnt_obeyed_is_said_and_changes_nothing(light: LightRig, spoil, said: str) -> None:  # noqa: ANN001
    with Live(light, KDTREE_VERIFY="validate") as live:
        assert live.wait_for(mode=f.VALIDATE)["reason"] == ""
        spoil(light.control, pack_control(f.ON, 3))
        while said not in (found := live.wait_for())["reason"]:
            assert live.process.poll() is None
        assert (found["mode"], found["control_generation"], found["patch_state"]) == (f.VALIDATE, 0, f.ACTIVE)
        light.control.unlink()
        light.write_control(f.OFF, 4)
        found = live.wait_for(mode=f.OFF)
        assert (found["mode"], found["reason"], found["control_generation"]) == (f.OFF, "", 4)


def test_a_refused_worker_never_follows(light: LightRig) -> None:
    light.library.unlink()
    with Live(light, KDTREE_VERIFY="on") as live:
        live.wait_for(patch_state=f.REFUSED)
        light.write_control(f.ON, 2)
        found = live.wait_for()
        found = live.wait_for()
        assert (found["mode"], found["patch_state"], found["control_generation"]) == (f.OFF, f.REFUSED, 0)


# fork, errors, sort, MoE

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
    import subprocess
    done = subprocess.run([light.interpreter, str(script)], env=light.environ(KDTREE_VERIFY="on"), text=True,
                          capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert [r[:2] for r in facts["ranks"]] == [[-1, f.PASSIVE], [0, f.ACTIVE], [1, f.ACTIVE]]
    assert [r[2] for r in facts["ranks"]] == [False, True, True]
    assert len(facts["left"]) == 1, "spawned ranks take their files away when they end"


FAILING = CODE + """
scene = Scene()
import torch._ops as ops
real = dict(ops.registry)
def raises(*a, **k): raise RuntimeError("illegal instruction\\nException raised from frame #0")
outs = [scene.call()]
script = {script}
for step in script:
    ops.registry["kdtree::verify_attn"] = raises if step == "x" else real["kdtree::verify_attn"]
    outs.append(scene.call())
show(stats=stats(), same=all(o == outs[0] for o in outs))
"""


@pytest.mark.parametrize("mode", ["validate", "on"])
def test_a_kernel_that_raises_is_handed_back_and_three_in_a_row_end_it(light: LightRig, mode: str) -> None:
    found, facts, stderr = serve(light, FAILING.format(script="'xx.xx.'"), KDTREE_VERIFY=mode)
    assert facts["same"] and stderr == ""
    assert (found["patch_state"], found["handed_back"][f.BACK_ERROR]) == (f.ACTIVE, 4)
    assert found["calls_kernel"] + found["calls_engine"] == 3
    assert found["reason"] == "kernel: illegal instruction", "one line, without the stack"
    found, facts, stderr = serve(light, FAILING.format(script="'xxx...'"), KDTREE_VERIFY=mode)
    assert facts["same"] and len(stderr.splitlines()) == 1
    assert (found["patch_state"], found["mode"], found["handed_back"][f.BACK_ERROR]) == (f.REFUSED, f.OFF, 3)
    assert found["reason"] == "kernel failed 3 times in a row: illegal instruction"
    assert found["calls_kernel"] + found["calls_engine"] == 1


@pytest.mark.parametrize("where", ["kdtree_patch.verify._decide", "kdtree_patch.eligible.check_layer",
                                   "kdtree_patch.eligible.check_call", "kdtree_patch.patch.Patch.see_call",
                                   "kdtree_patch.graphs.Graphs.wanted", "kdtree_patch.verify._Call._bind"])
def test_a_fault_of_our_own_ends_in_the_engines_call_once(light: LightRig, where: str) -> None:
    code = CODE + f"""
import unittest.mock
scene = Scene()
want = scene.call()
writes = []
pool = scene.pool
write = pool.set_kv_buffer
pool.set_kv_buffer = lambda *a, **k: (writes.append(1), write(*a, **k))
import kdtree_patch.verify
kdtree_patch.verify._signature.cache_clear()
with unittest.mock.patch({where!r}, side_effect=RuntimeError("ours")):
    got = scene.call()
show(stats=stats(), same=got == want, writes=len(writes))
"""
    found, facts, _ = serve(light, code, KDTREE_VERIFY="on")
    assert facts["same"] and facts["writes"] == 1
    assert found["handed_back"][f.BACK_ERROR] == 1 and found["calls_kernel"] == 1


def test_what_the_engine_raises_is_the_engines(light: LightRig) -> None:
    code = CODE + """
scene = Scene()
scene.call()
def broken(*a, **k): raise ValueError("the engine's own")
scene.backend.extend_attention_fwd = broken
calls = []
scene.pool.set_kv_buffer = lambda *a, **k: calls.append(1)
try:
    scene.call()
except ValueError as error:
    said = str(error)
show(stats=stats(), said=said, calls=len(calls), kept=scene.backend.extend_attention_fwd is broken)
"""
    found, facts, _ = serve(light, code, KDTREE_VERIFY="off")
    assert (facts["said"], facts["calls"], facts["kept"]) == ("the engine's own", 1, True)
    assert found["patch_state"] == f.ACTIVE


SORT = CODE + "scene = Scene()\nscene.call()\nshow(stats=stats(), need=scene.allocator.need_sort)"


def test_the_free_list_is_sorted_and_read_back(light: LightRig) -> None:
    for value, need, state in (("1", True, 1), ("0", False, 0), (None, True, 1)):
        found, facts, _ = serve(light, SORT, KDTREE_DEFRAG_SORT=value)
        assert (facts["need"], found["sort_state"]) == (need, state)


def test_a_sort_that_doesnt_take_is_said(light: LightRig) -> None:
    code = CODE + """
from sglang.srt.mem_cache.allocator import base
base.BaseTokenToKVPoolAllocator.need_sort = property(lambda self: False, lambda self, value: None)
scene = Scene()
scene.call()
show(stats=stats())
"""
    found, _, _ = serve(light, code, KDTREE_DEFRAG_SORT="1")
    assert (found["sort_state"], found["patch_state"]) == (2, f.ACTIVE)


def test_reading_our_own_file(light: LightRig) -> None:
    """The reader that these tests use tells a live file from none."""
    assert light.stats_files() == []
    with pytest.raises(Exception, match="No such file"):
        read_stats(str(light.stats / "1.stats"))
