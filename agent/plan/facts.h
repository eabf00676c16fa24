// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/nvml/list_gpus.h"
#include "agent/plan/manifest.h"
#include "agent/plan/state.h"
#include "agent/stats/control_file.h"
#include "agent/systemd/unit_state.h"
#include "agent/util/file.h"
#include "agent/util/mode.h"

// What make_plan needs to know of a host: plain values, collected once, no I/O behind them.
namespace kdtree {

struct TextFile {
  std::string path;
  std::string text;
};

// The engine's unit. `files` is its fragment (first; missing for a unit without one) and its
// drop-ins in the order in which systemd applies them, ours included: texts as they stand, because
// specifiers and quoting must survive.
struct EngineUnitFacts {
  UnitState state;
  std::vector<TextFile> files;
  std::vector<TextFile> environment_files;  // those of EnvironmentFile= that exist, globs expanded
  std::map<std::string, std::string>
      manager_environment;  // DefaultEnvironment= and set-environment
};

// What `python -m kdtree_patch.probe` said.
struct EngineFacts {
  std::string name;     // "sglang"
  std::string version;  // "0.5.17"
  std::string fingerprint;
  bool known = false;  // the fingerprint is one that this kdtree was tested with
  bool binds = false;  // the signatures that the patch uses are there
  std::vector<std::string> differences;
  std::string torch;   // "2.11.0+cu130"; "" = none
  std::string python;  // "3.11.2"
  std::string site;    // its site-packages
};

// The compiler for kernel.device cuda.
struct NvccFacts {
  std::string path;       // absolute
  std::string cuda_home;  // the toolkit that it belongs to
  std::string version;    // "13.0"
};

// Something on the host that does by hand what kdtree does.
struct HandMade {
  std::string what;  // one line, names the file
  std::string next;  // what to do
  bool doubles =
      false;  // it would patch the engine besides kdtree; else kdtree's part of the unit wins
};

struct Facts {
  bool root = false;  // effective uid 0, or another root than "/"
  EngineUnitFacts unit;
  std::optional<EngineFacts> engine;  // nullopt: the probe could not be run; why is in engine_error
  std::string engine_error;
  std::string user_error;  // why the engine's user is none of this host's; "" = it is one
  std::vector<GpuFacts> gpus;
  std::string driver;     // "" = unknown
  std::string gpu_error;  // why `gpus` is empty, if it is
  std::optional<NvccFacts> nvcc;
  std::vector<std::string> nvcc_searched;  // where it was looked for
  std::vector<HandMade> hand_made;
  std::uint64_t free_bytes = 0;  // where releases are kept
  std::string source_digest;  // of /usr/share/kdtree: kernel and patch sources; "" = not installed
  std::optional<TextFile> agent_unit;  // kdtree-agent.service, if it is installed
  std::vector<std::string> trees;      // of those that uninstall removes whole: which are there

  State state;                      // state.json; a fresh one where there is none
  std::optional<Manifest> release;  // of the release wished for; deploy and rollback replace it
  std::optional<Control> control;   // the control file in force
  std::map<std::string, std::optional<FileImage>>
      files;  // what each path that a plan may touch holds now
};

}  // namespace kdtree
