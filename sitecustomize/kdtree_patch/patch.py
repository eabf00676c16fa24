# SPDX-License-Identifier: Apache-2.0
"""The state of kdtree in this process: what it is in, what it counted, and the side thread that reports it.

Life: passive (started, no attention backend made here: a launcher, a detokenizer) -> active (armed: the mode decides)
or refused (stood aside for good; the engine runs as if kdtree were not there). A process that is not a rank leaves a
file with rank -1; one that never imports the engine leaves none. A forked child is passive for good and leaves none.
"""
import atexit
import logging
import os
import sys
import threading
import time

from . import stats_format as f
from .control import ControlError, ControlFollower
from .counters import Counters
from .env import Settings, SettingsError, environment_digest, read_settings, stats_dir
from .fingerprint import Engine, examine, find_package
from .rank import Ranks, device_facts, read_ranks
from .release import KernelError, check_made_for, read_manifest
from .report import report
from .stats import StatsWriter

_LOOK_S, _PUBLISH_S, _IDLE_S, _SLOTS_S = 0.02, 0.2, 1.0, 1.0
_MAX_ERRORS = 3
_NOT_ARMED = "no attention backend was made in this process (yet)"
_log = logging.getLogger("kdtree")


def _line(text: str) -> str:
    """The first line of an error's text: torch appends stack traces."""
    return text.strip().split("\n", 1)[0].strip()


class Patch:
    """One a process: `PATCH`. ready() is what wrapped functions ask; nothing here raises into the engine."""

    def __init__(self) -> None:
        self.state = f.PASSIVE
        self.mode = f.OFF
        self.settings: Settings | None = None
        self.engine: Engine | None = None
        self.counters = Counters()
        self.kernel = None  # kernel.Kernel once armed
        self.moe = None  # moe.Observer once its module was patched
        self.graphs = None  # graphs.Graphs once armed
        self.release_id = self.torch_version = ""  # once arming has begun
        self.sort_state = -1
        self._reason = _NOT_ARMED
        self._control_reason = ""
        self._error_reason = ""
        self.generation = 0
        self._errors_in_a_row = 0
        self.ranks = Ranks()
        self.device = ("", "")
        self.graphs_state = -1
        self._slots_due = 0.0
        self._looks = True
        self._started = False
        self._writer: StatsWriter | None = None
        self.digest = ""
        self._follower: ControlFollower | None = None
        self._lock = threading.RLock()
        self._wake = threading.Event()

    # start, arm, refuse

    def start(self) -> None:
        """Settings, stats file, engine's fingerprint, side thread. Once; leaves passive or refused."""
        with self._lock:
            if self._started:
                return
            self._started = True
            self.digest = environment_digest(os.environ)
            try:
                self._writer = StatsWriter(stats_dir(os.environ))
            except Exception as error:
                self.refuse(f"no stats file, and nothing is patched unseen: {error}")
                return
            try:
                self.settings = read_settings(os.environ)
                self._follower = ControlFollower(self.settings.control)
                self._identify()
            except SettingsError as error:
                self.refuse(str(error))
            except Exception as error:
                self.refuse(f"can't tell which engine this is: {error!r}")
            os.register_at_fork(after_in_child=self._after_fork)
            atexit.register(self._at_exit)
            try:
                self._publish()
            except Exception as error:
                self.refuse(f"can't write the stats file, and nothing is patched unseen: {error}")
            threading.Thread(target=self._run, name="kdtree", daemon=True).start()

    def _identify(self) -> None:
        package = sys.modules.get("sglang")
        places = list(getattr(package, "__path__", []) or [])
        self.engine = engine = examine(places[0] if places else find_package())
        if engine.known:
            return
        what = "; ".join(engine.differences)
        if not engine.binds:
            self.refuse(f"engine {engine.version} can't be patched: {what}")
        elif self.settings.accepted != engine.fingerprint:
            self.refuse(f"unknown engine {engine.version}, fingerprint {engine.fingerprint[:16]}: {what}")

    def usable(self) -> bool:
        """Started, and nothing speaks against patching functions."""
        self.start()
        return self._started and self.state != f.REFUSED and self.settings is not None

    def ready(self, model_runner: object = None) -> bool:
        """True if armed. The first call in a rank arms: loads the kernel, reads the ranks. Never raises."""
        if self.state == f.ACTIVE:
            return True
        if not self.usable():
            return False
        with self._lock:
            if self.state == f.PASSIVE:
                try:
                    self._arm(model_runner)
                except Exception as error:
                    self.refuse(str(error) or repr(error))
        return self.state == f.ACTIVE

    def _arm(self, model_runner: object) -> None:
        from .graphs import Graphs
        from .kernel import Kernel

        self.learn(model_runner)
        manifest = read_manifest(self.settings.library)
        self.release_id = manifest["release"]
        torch = sys.modules.get("torch")
        if torch is None:
            raise KernelError("torch is not loaded in this process")
        self.torch_version = str(torch.__version__)
        check_made_for(manifest, self.engine, self.torch_version)
        self.kernel = Kernel(self.settings, manifest)
        self.graphs = Graphs(self, self.kernel)
        self.set_mode(self.settings.mode)
        self._follow()
        self._reason = ""
        self.state = f.ACTIVE
        self._wake.set()

    def learn(self, model_runner: object) -> None:
        """Ranks and device, as far as the engine says them now; keeps what was known before."""
        known = read_ranks(model_runner)
        for name, value in vars(known).items():
            if value not in (-1, ""):
                setattr(self.ranks, name, value)
        if self.ranks.device:
            self.see_device(self.ranks.device, self.ranks.gpu)

    def see_device(self, device: str, index: int) -> None:
        """The device that the verify calls run on. Never raises."""
        if not self.device[1]:
            try:
                self.device = device_facts(device, index)
            except Exception:
                self.device = ("", device)

    def refuse(self, reason: str) -> None:
        """Stands aside for good: every wrapped function calls the original from now on. One log line a process."""
        reason = _line(reason)
        with self._lock:
            if self.state == f.REFUSED:
                return
            self.set_mode(f.OFF)
            self.state, self._reason = f.REFUSED, reason
        _log.warning("kdtree stands aside in process %d, the engine runs without it: %s", os.getpid(), reason)
        self._wake.set()

    # modes

    def set_mode(self, mode: int) -> None:
        """Puts a mode in force, eager calls and captured graphs alike."""
        self.mode = mode
        if self.graphs is not None:
            self.graphs.set_mode(mode)

    def _follow(self) -> None:
        if self._follower is None:
            return
        try:
            control = self._follower.look()
        except ControlError as error:
            self._control_reason = str(error)
            return
        if control is None:
            return
        if control.release_id not in ("", self.release_id):
            self._control_reason = (f"control file: for release {control.release_id}, this is "
                                    f"{self.release_id or 'unknown'}")
            return
        with self._lock:  # never over a refusal
            if self.state != f.REFUSED:
                self._control_reason = ""
                self.generation = control.generation
                self.set_mode(control.mode)

    # counting

    def hand_back(self, reason: int, site: object) -> None:
        """A call stays with the engine's kernel. site: graphs.Site. Never raises."""
        try:
            in_graph = self.graphs.wanted(site.q)
        except Exception as error:
            in_graph = False
            self.note_error("patch", error)
        if in_graph:
            self.graphs.hand_back(site, reason)
        else:
            self.counters.handed_back[reason] += 1

    def kernel_answered(self) -> None:
        self._errors_in_a_row = 0

    def kernel_failed(self, error: Exception) -> None:
        """A kernel call raised; after three in a row the patch stands aside."""
        self.counters.handed_back[f.BACK_ERROR] += 1
        self._failed("kernel", _line(str(error)))

    def failed(self, error: Exception) -> None:
        """Our own code raised: counted in the same way."""
        self.counters.handed_back[f.BACK_ERROR] += 1
        self._failed("patch", _line(repr(error)))

    def capture_failed(self, error: Exception, where: str) -> None:
        """The same in a warm-up or a capture, which serves nobody: replays are counted where they happen."""
        self._failed("kernel", f"{where}: {_line(str(error))}")

    def _failed(self, what: str, said: str) -> None:
        self._errors_in_a_row += 1
        self._error_reason = f"{what}: {said}"
        if self._errors_in_a_row >= _MAX_ERRORS:
            self.refuse(f"{what} failed {_MAX_ERRORS} times in a row: {said}")

    def note_error(self, what: str, error: Exception) -> None:
        """Something that no answer depends on raised: said, and no more."""
        self._error_reason = f"{what}: {_line(repr(error))}"

    @property
    def reason(self) -> str:
        """Why refused or passive, else what is wrong with the control file, else the last error; "" = all is well."""
        return self._reason or self._control_reason or self._error_reason

    def observer_failed(self, error: Exception) -> None:
        """The MoE observer raised: it is put aside, the verify path goes on."""
        self.moe = None
        self.note_error("MoE observer", error)

    def see_call(self, bound: dict[str, object]) -> None:
        """An eager call: the device it runs on, and once a second its KV slots."""
        device, now = bound["q_extend"].device, time.monotonic()
        self.see_device(device.type, getattr(device, "index", None) or 0)
        self.see_graphs(False)
        if now >= self._slots_due:
            self._slots_due = now + _SLOTS_S
            self.look(bound)

    def look(self, bound: dict[str, object], enable: object = None) -> None:
        """At a call's KV slots; if that fails, never again. Never raises."""
        if not self._looks:
            return
        try:
            self.kernel.look(bound, enable)
        except Exception as error:
            self._looks = False
            self.note_error("KV slots", error)

    def see_graphs(self, captured: bool) -> None:
        if captured or self.graphs_state < 0:
            self.graphs_state = 1 if captured else 0

    # reporting

    def _publish(self) -> None:
        with self._lock:
            if self._writer is not None:
                self._writer.publish(*report(self))

    def _run(self) -> None:
        pid, waited, slots_due = os.getpid(), 0.0, 0.0
        while os.getpid() == pid:
            armed = self.state == f.ACTIVE
            step = _LOOK_S if armed else _IDLE_S
            woken = self._wake.wait(step)
            self._wake.clear()
            waited += step
            try:
                before = self.mode
                if armed:
                    self._follow()
                    self.graphs.refresh()
                    if time.monotonic() >= slots_due:
                        slots_due = time.monotonic() + _SLOTS_S
                        self.graphs.ask_look()
                if woken or self.mode != before or waited >= (_PUBLISH_S if armed else _IDLE_S):
                    waited = 0.0
                    self._publish()
            except Exception as error:  # a full disk, say: the engine goes on, the next turn tries again
                self._error_reason = f"stats: {error}"

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        if self._writer is not None:
            self._writer.forget()
        self._writer = None
        self.state, self.mode, self.settings, self._reason = f.PASSIVE, f.OFF, None, "forked"

    def _at_exit(self) -> None:
        if self._writer is not None:
            self._writer.remove()


PATCH = Patch()
