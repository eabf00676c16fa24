# SPDX-License-Identifier: Apache-2.0
"""SGLang's other releases: their own attention class, Triton kernel, allocator and router under the patch, on the CPU.

What a release has to pass to be added to engines.json. Each runs with the packages of the locked environment, its own
source in front of them; a release that is not known is accepted, as an operator would."""
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from patch_rig import HERE, PREAMBLE, SHOW, Rig, ask
from kdtree_patch import stats_format as f
from kdtree_patch.fingerprint import examine, known_engines

sys.path.insert(0, str(HERE.parent / "contract"))
from engine_sources import INSTALLED, VERSIONS, folder  # noqa: E402

OTHERS = [version for version in VERSIONS if version != INSTALLED]

CODE = PREAMBLE + """
import sglang
facts["package"] = list(sglang.__path__)
for masked, drafts in ((True, 5), (True, 33), (False, 5)):
    for mode in ("off", "validate", "on"):
        scene = Scene(masked=masked, drafts=drafts)
        PATCH.ready(); PATCH.set_mode(f.MODES[mode])
        facts[f"{'tree' if masked else 'causal'} {drafts} {mode}"] = [scene.error(), scene.pool.writes]
facts["stats"] = {n: v for n, v in stats().items() if n in (
    "patch_state", "reason", "engine_version", "engine_fingerprint", "calls_kernel", "calls_engine", "compares",
    "mismatches", "max_ulp", "handed_back")}

# under CUDA graphs the gate gives the engine's kernel zeroed copies of its index arrays: then it must write nothing
scene = Scene(); PATCH.set_mode(f.OFF)
real, seen = scene.backend.extend_attention_fwd, []
scene.backend.extend_attention_fwd = lambda *a, **k: seen.append((a, k))
scene.backend.__class__.forward_extend.__wrapped__(scene.backend, scene.q, scene.k, scene.v, scene.layer, scene.batch)
args, keywords = list(seen[0][0]), seen[0][1]
args[3].fill_(7.0)
args[6], args[7] = torch.zeros_like(args[6]), torch.zeros_like(args[7])
real(*args, **keywords)
facts["zeroed"] = [float(args[3].min()), float(args[3].max())]

from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
allocator = TokenToKVPoolAllocator(64, torch.float16, "cpu", None, False)
first = allocator.alloc(40)
allocator.free(first[torch.randperm(40)])
facts["sorted"] = [allocator.need_sort, bool((allocator.alloc(60).diff() > 0).all()), PATCH.sort_state]

from sglang.srt.layers.moe.topk import TopKConfig, select_experts
logits = torch.full((3, 8), -9.0)
logits[:, :2] = 9.0
def layers():
    global out
    for layer in (1, 2):
        out = select_experts(torch.zeros(3, 16), logits, TopKConfig(top_k=2, renormalize=True, torch_native=True), layer_id=layer)
for _ in range(2):
    one_pass(layers, 3)
facts["ids"] = out.topk_ids.sort(1)[0].tolist()
found = stats()
facts["routed"] = [found["moe_experts"], found["moe_first_layer"], found["sections"].get(f.SECTION_EXPERT_TOKENS)]
facts["patched"] = [found["patch_state"], found["reason"]]
"""


def answer(version: str, rig: Rig) -> dict:
    package = folder(version)
    path = f"{package.parent}:{rig.environ()['PYTHONPATH']}"
    engine = examine(str(package))
    rig.write_manifest(engine_version=engine.version, engine_fingerprint=engine.fingerprint)
    return ask(rig, CODE + SHOW, PYTHONPATH=path, KDTREE_ACCEPT_ENGINE=engine.fingerprint,
               HF_HUB_OFFLINE="1", SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK="1", TORCHDYNAMO_DISABLE="1", OMP_NUM_THREADS="1")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future]]:
    """Version -> what its process will have said; two run at a time (an import takes 1.1 GB)."""
    with ThreadPoolExecutor(2) as pool:
        yield {version: pool.submit(answer, version, Rig(tmp_path_factory.mktemp("engine"))) for version in OTHERS}


@pytest.fixture(scope="module", params=OTHERS)
def engine(request: pytest.FixtureRequest, answers: dict[str, Future]) -> tuple[str, dict]:
    return request.param, answers[request.param].result()


def test_it_is_that_release_and_the_patch_is_in_it(engine: tuple[str, dict]) -> None:
    version, facts = engine
    assert facts["package"] == [str(folder(version))]
    assert facts["stats"]["engine_version"] == version
    assert facts["patched"] == [f.ACTIVE, ""]


@pytest.mark.parametrize("mode", ["off", "validate", "on"])
@pytest.mark.parametrize("case", ["tree 5", "tree 33", "causal 5"])
def test_each_mode_answers_right_and_writes_kv_once(engine: tuple[str, dict], case: str, mode: str) -> None:
    error, writes = engine[1][f"{case} {mode}"]
    assert error < 2e-3, "fp16 against fp32 at magnitude 1"
    assert writes == 1


def test_every_call_was_eligible_and_none_differed(engine: tuple[str, dict]) -> None:
    stats = engine[1]["stats"]
    assert (stats["calls_kernel"], stats["calls_engine"], sum(stats["handed_back"])) == (3, 6, 0)
    assert (stats["compares"], stats["mismatches"]) == (3, 0) and 0 < stats["max_ulp"] <= 4


def test_its_kernel_writes_nothing_when_the_gate_is_shut(engine: tuple[str, dict]) -> None:
    assert engine[1]["zeroed"] == [7.0, 7.0]


def test_its_free_list_is_sorted(engine: tuple[str, dict]) -> None:
    assert engine[1]["sorted"] == [True, True, 1]


def test_its_router_is_observed(engine: tuple[str, dict]) -> None:
    facts = engine[1]
    assert facts["ids"] == [[0, 1]] * 3
    assert facts["routed"] == [8, 1, [[6, 6, 0, 0, 0, 0, 0, 0]] * 2]


ARM = """
import json, sys, types
sys.modules["torch"] = types.SimpleNamespace(__version__={torch!r})  # as far as arming looks before it loads the op
from kdtree_patch.patch import PATCH
PATCH.ready()
print(json.dumps([PATCH.state, PATCH.reason, PATCH.engine.known]))
"""


@pytest.mark.parametrize("version", [known["version"] for known in known_engines()])
def test_a_known_release_is_taken_where_the_manifest_names_it_alone(tmp_path, version: str) -> None:
    """An upgrade in place: the engine is known, but kdtree's release was made for another one."""
    rig, engine = Rig(tmp_path), examine(str(folder(version)))
    others = [known for known in known_engines() if known["fingerprint"] != engine.fingerprint]
    assert others
    for other in others:
        rig.write_manifest(engine_version=other["version"], engine_fingerprint=other["fingerprint"])
        assert rig.json(ARM.format(torch=rig.torch_version()), path=str(folder(version).parent)) == [
            f.REFUSED, f"made for engine {other['version']} (fingerprint {other['fingerprint'][:16]}), this is {version} "
            f"({engine.fingerprint[:16]}): deploy again", True]
    rig.write_manifest(engine_version=version, engine_fingerprint=engine.fingerprint)
    assert "can't be loaded" in rig.json(ARM.format(torch=rig.torch_version()), path=str(folder(version).parent))[1]
