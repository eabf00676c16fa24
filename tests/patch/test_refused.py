# SPDX-License-Identifier: Apache-2.0
"""What is not as the release was made for is refused: in one line, and the engine serves as without kdtree."""
import json
import os
from pathlib import Path

import pytest

from light_process import CODE, SERVE, refused, serve
from patch_rig import LIGHT, LightRig, light_engine
from kdtree_patch import stats_format as f


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
