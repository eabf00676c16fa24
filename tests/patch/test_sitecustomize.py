# SPDX-License-Identifier: Apache-2.0
"""The hook in every Python process: real interpreters, real sys.path."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

from patch_rig import SITE, Rig

LIST = "import sys, json; print(json.dumps(sorted(m for m in sys.modules if m.startswith('kdtree'))))"


def foreign(folder: Path, text: str) -> str:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return str(folder)


def recorder(folder: Path) -> str:
    """Packages that leave a file when they are imported."""
    folder.mkdir()
    for name in ("torch", "sglang", "numpy", "prometheus_client", "triton"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'imported')!r}, 'a').write('{name}\\n')\n")
    return str(folder)


def test_without_the_variable_nothing_of_kdtree_is_imported(rig: Rig) -> None:
    assert rig.json(LIST, KDTREE_VERIFY=None) == []
    assert rig.json(LIST, KDTREE_VERIFY="") == []
    assert rig.stats_files() == []


def test_with_it_two_small_modules_are_imported_and_nothing_is_printed(rig: Rig) -> None:
    done = rig.run(LIST)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == '["kdtree_patch", "kdtree_patch.hook"]'
    assert rig.stats_files() == []


def test_it_adds_no_module_of_the_library_that_python_had_not_loaded(rig: Rig) -> None:
    listing = "import sys; print(' '.join(sorted(sys.modules)))"
    bare = set(rig.run(listing, KDTREE_VERIFY=None).stdout.split())
    hooked = set(rig.run(listing).stdout.split())
    assert hooked - bare <= {"kdtree_patch", "kdtree_patch.hook"}, hooked - bare


@pytest.mark.parametrize("mode", [None, "off", "validate", "on", "nonsense"])
def test_it_chains_to_the_next_sitecustomize(rig: Rig, tmp_path: Path, mode: str | None) -> None:
    other = foreign(tmp_path / "other", "import builtins; builtins.other_ran = getattr(builtins, 'other_ran', 0) + 1\n")
    code = "import sys; print(other_ran, sys.modules['sitecustomize'].__file__, sys.path.index(%r) < sys.path.index(%r))" % (
        str(SITE), other)
    done = rig.run(code, KDTREE_VERIFY=mode, PYTHONPATH=f"{SITE}:{other}")
    assert done.stdout.split() == ["1", f"{other}/sitecustomize.py", "True"], done.stderr


def test_it_runs_when_another_one_is_first_and_chains(rig: Rig, tmp_path: Path) -> None:
    chain = ("import sys, os; own = os.path.dirname(__file__); sys.path.remove(own); del sys.modules['sitecustomize']\n"
             "import sitecustomize; sys.path.insert(0, own)\n")
    other = foreign(tmp_path / "other", chain)
    done = rig.run(LIST, PYTHONPATH=f"{other}:{SITE}")
    assert done.stdout.strip() == '["kdtree_patch", "kdtree_patch.hook"]', done.stderr
    done = rig.run(LIST, PYTHONPATH=f"{SITE}:{other}")
    assert done.stdout.strip() == '["kdtree_patch", "kdtree_patch.hook"]', done.stderr


def test_what_the_next_one_raises_looks_as_it_does_without_kdtree(rig: Rig, tmp_path: Path) -> None:
    other = foreign(tmp_path / "other", "raise ValueError('theirs')\n")
    plain = rig.run(LIST, KDTREE_VERIFY=None, PYTHONPATH=other)
    done = rig.run(LIST, PYTHONPATH=f"{SITE}:{other}")
    assert done.returncode == 0
    assert done.stderr == plain.stderr and "theirs" in done.stderr
    assert done.stdout.strip() == '["kdtree_patch", "kdtree_patch.hook"]'


def test_a_broken_package_does_not_stop_python(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "broken" / "kdtree_patch").mkdir(parents=True)
    (tmp_path / "broken" / "kdtree_patch" / "__init__.py").write_text("raise RuntimeError('broken release')\n")
    other = foreign(tmp_path / "other", "import builtins; builtins.other_ran = 1\n")
    done = rig.run("print(other_ran)", PYTHONPATH=f"{tmp_path}/broken:{SITE}:{other}")
    assert (done.stdout.strip(), done.stderr) == ("1", "")


@pytest.mark.parametrize("flag", ["-S", "-I", "-E", "-s", "-P"])
def test_interpreter_flags(rig: Rig, flag: str) -> None:
    """-S runs no sitecustomize; -I and -E ignore PYTHONPATH and leave the variable's hook out; nothing ever fails."""
    done = rig.run(LIST, flag)
    assert (done.returncode, done.stderr) == (0, "")
    expected = '["kdtree_patch", "kdtree_patch.hook"]' if flag in ("-s", "-P") else "[]"
    assert done.stdout.strip() == expected


def test_starting_python_never_imports_the_engine_not_even_in_spawned_children(rig: Rig, tmp_path: Path) -> None:
    """SGLang's ranks are multiprocessing spawn children: an import of torch or sglang at start would recurse there."""
    fakes = recorder(tmp_path / "fakes")
    script = tmp_path / "spawns.py"
    script.write_text("import multiprocessing, sys\n"
                      "def child(depth):\n"
                      "    if depth: launch(depth - 1)\n"
                      "    print('child', depth, 'kdtree_patch' in sys.modules, flush=True)\n"
                      "def launch(depth):\n"
                      "    process = multiprocessing.get_context('spawn').Process(target=child, args=(depth,))\n"
                      "    process.start(); process.join(); assert process.exitcode == 0\n"
                      "if __name__ == '__main__': launch(1)\n")
    environ = rig.environ(KDTREE_VERIFY="on", PYTHONPATH=f"{SITE}:{rig.python}:{fakes}")
    done = subprocess.run([sys.executable, str(script)], env=environ, text=True, capture_output=True, timeout=60,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["child 0 True", "child 1 True"]
    assert done.stderr == ""
    assert not os.path.exists(f"{fakes}/imported"), Path(f"{fakes}/imported").read_text()
    assert rig.stats_files() == []
    # the recorder works: a process that does import them leaves the file
    rig.run("import torch", PYTHONPATH=f"{SITE}:{fakes}")
    assert Path(f"{fakes}/imported").read_text() == "torch\n"


def test_the_hook_calls_back_once_and_hides_nothing(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "mods").mkdir()
    (tmp_path / "mods" / "watched.py").write_text("value = 1\n")
    (tmp_path / "mods" / "failing.py").write_text("raise RuntimeError('first import')\n")
    code = """
import importlib, importlib.util, json, sys
from kdtree_patch.hook import watch
seen = []
def callback(module):
    seen.append(module.__name__)
    raise RuntimeError('ours')
watch(('watched', 'failing', 'absent'), callback)
watch(('watched',), callback)
importlib.util.find_spec('watched')
import watched
importlib.reload(watched)
for name in ('failing', 'absent'):
    try: importlib.import_module(name)
    except Exception as error: seen.append(type(error).__name__)
spec = watched.__spec__
print(json.dumps([seen, watched.value, type(spec.loader).__name__, type(watched.__loader__).__name__,
                  spec.loader.get_source('watched')]))
"""
    assert rig.json(code, path=str(tmp_path / "mods")) == [
        ["watched", "RuntimeError", "ModuleNotFoundError"], 1, "SourceFileLoader", "SourceFileLoader", "value = 1\n"]


def test_a_watched_module_can_be_run_with_dash_m(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "mods").mkdir()
    (tmp_path / "mods" / "tool.py").write_text("print('ran', __name__)\n")
    code = ("import runpy; from kdtree_patch.hook import watch; watch(('tool',), print); "
            "runpy.run_module('tool', run_name='__main__')")
    assert rig.run(code, path=str(tmp_path / "mods")).stdout.strip() == "ran __main__"
