// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/manual.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "agent/util/root.h"

namespace kdtree {
namespace {

struct Row {
  const char* name;
  const char* text;
};

constexpr const char* kSummary =
    "put kdtree's verify-attention kernel under a running SGLang, safely";

constexpr const char* kDescription =
    "kdtreectl builds the kernel for the engine's own Python, installs it beside the engine, and "
    "switches it between "
    "the modes off (the engine's own kernel answers), validate (both run, the engine's own "
    "answers, the difference is "
    "measured) and on (kdtree's kernel answers). Every change is a transaction: it is planned, "
    "written to a journal, "
    "carried out, and only kept if the engine passes its health gate; else the old state comes "
    "back by the same way.";

constexpr std::array kExitCodes = {
    Row{"0", "done; or answered, and the answer is good"},
    Row{"1",
        "answered, and the answer is bad: a doctor failure, drift, a verdict that is not clean"},
    Row{"2", "usage: the command line or the configuration is wrong"},
    Row{"3", "refused; nothing was changed"},
    Row{"4", "failed; the old state is in force again"},
    Row{"5", "failed, and going back failed too; the host's state is printed"},
    Row{"6", "another kdtreectl is at work"},
};

constexpr std::array kModes = {
    // in the order of Mode
    Row{"off",
        "the engine's own kernel answers. A worker that was started with the patch captures both "
        "kernels in its CUDA graphs, so that capturing takes longer than without kdtree"},
    Row{"validate",
        "both kernels run on every verify call, so that a step takes longer than in off; the "
        "engine's own answers are used"},
    Row{"on",
        "kdtree's kernel answers; what is gained grows with the length of the context. Calls that "
        "it can't take are handed back to the engine's kernel and counted by reason"},
    Row{"off --cold", "the engine runs without the patch, after a restart"},
};

constexpr std::array kKeys = {
    Row{"engine.unit", "the engine's service, such as sglang.service; required"},
    Row{"engine.python", "absolute path of the python3 that runs the engine; required"},
    Row{"engine.health_url", "answers 200 when the engine serves; required"},
    Row{"engine.ranks",
        "how many processes have to report, 1 to 64: the tensor parallel size; required"},
    Row{"engine.command",
        "list of words; given, kdtree writes the whole unit; else the unit exists and gets a "
        "drop-in"},
    Row{"engine.user, engine.environment",
        "of the unit that kdtree writes; only with engine.command"},
    Row{"kernel.device", "cuda, or cpu for tests; cuda"},
    Row{"kernel.archs", "list such as [\"120\"]; those of the GPUs that are there"},
    Row{"kernel.cuda_home", "folder with bin/nvcc; searched for, in the engine's Python too"},
    Row{"kernel.nsplit",
        "text, 1 to 1024: parts that a call's KV is cut into; chosen on the device"},
    Row{"kernel.defrag_sort", "the engine's free list of KV slots is kept sorted; true"},
    Row{"modes.MODE.mem_fraction_static",
        "of off, validate or on: replaces the engine's own; the engine's own"},
    Row{"modes.MODE.add_flags, modes.MODE.remove_flags",
        "lists: what the mode changes in the engine's command line; a removed flag's value goes "
        "with it. Modes with different command lines can't be switched without a restart"},
    Row{"deadlines.healthy_s", "seconds that the engine may take to become healthy; 1800"},
    Row{"deadlines.stop_s", "seconds that it may take to stop; 300"},
    Row{"deadlines.stable_s", "seconds that it has to stay healthy; 10"},
    Row{"deadlines.drain_s",
        "seconds that running requests get before a restart, which then begins with SIGTERM to the "
        "engine's main process alone; 0: the unit's own way of stopping at once; 30"},
    Row{"gate.golden.url, gate.golden.request, gate.golden.expect",
        "a request (JSON) that is posted to an engine with kdtree before a change counts as good, "
        "and text that its answer has to contain; none"},
    Row{"gate.gpu_free_mib",
        "MiB that every GPU of a rank has to have left then; 0, which doesn't look"},
    Row{"validate.min_compares", "compared calls that a clean verdict asks of every rank; 1000"},
    Row{"validate.max_ulp", "largest difference of one element, in units of the last place; 4"},
    Row{"validate.mean_ulp",
        "largest mean difference of a request in one call, in the same units; 0.5"},
    Row{"agent.listen", "HOST:PORT or unix:/PATH of kdtree-agent's metrics; 127.0.0.1:9817"},
    Row{"agent.web_config",
        "file with TLS and passwords for it, in the format of Prometheus' exporters; needed to "
        "listen beyond loopback; none"},
    Row{"moe.ep_size", "expert parallel size, where the ranks don't say it; what they say"},
};

constexpr std::array kFiles = {
    Row{paths::kConfig, "the configuration: JSON with comments; unknown keys are refused"},
    Row{paths::kReleases, "one folder a release, never changed once made"},
    Row{paths::kCurrent, "symlink to the release in force"},
    Row{paths::kState,
        "state.json, the transaction journal, the audit log audit.jsonl. state.json keeps the "
        "configuration of the last change: status, mode off, rollback, uninstall and recover go by "
        "it where the file is lost or broken"},
    Row{paths::kControl, "the mode that running engine processes follow"},
    Row{paths::kStats, "one file an engine process: what the patch does in it"},
};

constexpr std::array kExamples = {
    Row{"kdtreectl doctor", "Is this host ready?"},
    Row{"kdtreectl deploy --dry-run", "What would be changed?"},
    Row{"kdtreectl deploy", "Build, install, restart the engine, in mode off."},
    Row{"kdtreectl mode validate", "Compare both kernels while the engine serves."},
    Row{"kdtreectl verdict", "What has been compared?"},
    Row{"kdtreectl mode on", "Let kdtree's kernel answer."},
    Row{"kdtreectl mode off --cold", "Restart the engine without the patch."},
};

constexpr const char* kSmallestConfiguration = R"({
  "engine": {
    "unit": "sglang.service",
    "python": "/opt/sglang/bin/python3",
    "health_url": "http://127.0.0.1:30000/health",
    "ranks": 8
  }
})";

// Text for roff: no line is taken for a request, backslashes and dashes are literal.
std::string roff(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string option_text(const CLI::Option& option) {
  std::string name = option.get_positional() ? option.get_name(true) : option.get_name(false, true);
  std::ranges::replace(name, ',', ' ');
  for (std::size_t at = 0; (at = name.find(' ', at)) != name.npos; at += 2)
    name.replace(at, 1, ", ");
  if (!option.get_positional() && option.get_type_size() != 0) name += " " + option.get_type_name();
  return name;
}

void add_options(std::ostringstream& out, CLI::App& app) {
  for (const auto* option : app.get_options()) {
    if (option->get_group().empty() || option->get_description().empty()) continue;
    if (option->check_lname("help") && app.get_parent()) continue;
    out << ".TP\n.B " << roff(option_text(*option)) << "\n"
        << roff(option->get_description()) << ".\n";
  }
}

template <typename Rows>
void add_rows(std::ostringstream& out, const Rows& rows) {
  for (const auto& row : rows)
    out << ".TP\n.B " << roff(row.name) << "\n" << roff(row.text) << "\n";
}

std::string verb_usage(const CLI::App& verb) {
  std::string usage = "kdtreectl " + verb.get_name() + " [OPTIONS]";
  for (const auto* option : verb.get_options())
    if (option->get_positional()) usage += " [" + option->get_name(true) + "]";
  return usage;
}

}  // namespace

std::string_view mode_costs(Mode mode) { return kModes.at(static_cast<std::size_t>(mode)).text; }

void describe_program(CLI::App& app) {
  app.name("kdtreectl");
  app.description(std::string("kdtreectl: ") + kSummary);
  app.set_version_flag("--version", std::string("kdtreectl ") + KDTREE_VERSION,
                       "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(1);
  app.fallthrough();
  std::string footer = "\nExit status:\n";
  for (const auto& row : kExitCodes)
    footer += std::string("  ") + row.name + "  " + row.text + "\n";
  footer += "\nkdtreectl VERB --help tells more about a verb; so does man 8 kdtreectl.";
  app.footer(footer);
}

std::string man_page(CLI::App& app) {
  std::ostringstream out;
  out << ".\\\" Made by kdtreectl from its own --help.\n"
      << R"(.TH KDTREECTL 8 "" "kdtree )" << KDTREE_VERSION << "\" \"System administration\"\n"
      << ".SH NAME\nkdtreectl \\- " << roff(kSummary) << "\n"
      << ".SH SYNOPSIS\n.B kdtreectl\n[\\fB\\-\\-root\\fR \\fIDIR\\fR] \\fIVERB\\fR "
         "[\\fIOPTIONS\\fR]\n"
      << ".SH DESCRIPTION\n"
      << roff(kDescription) << "\n.SH OPTIONS\n";
  add_options(out, app);
  out << ".SH VERBS\n";
  for (auto* verb : app.get_subcommands({})) {
    if (verb->get_group().empty()) continue;
    out << ".SS " << roff(verb_usage(*verb)) << "\n" << roff(verb->get_description()) << ".\n";
    const std::string more = verb->get_footer();  // the program's own where the verb has none
    if (!more.empty() && more != app.get_footer()) out << ".PP\n" << roff(more) << "\n";
    add_options(out, *verb);
  }
  out << ".SH MODES\n";
  add_rows(out, kModes);
  out << ".SH EXIT STATUS\n";
  add_rows(out, kExitCodes);
  out << ".SH CONFIGURATION\nThe smallest " << roff(paths::kConfig)
      << " for an engine that runs under systemd already:\n.PP\n.nf\n"
      << roff(kSmallestConfiguration)
      << "\n.fi\n.PP\nAll keys, and what they are where they are left out. Comments are allowed, a "
         "comma before a closing bracket is not.\n";
  add_rows(out, kKeys);
  out << ".SH FILES\n";
  add_rows(out, kFiles);
  out << ".SH EXAMPLES\n";
  add_rows(out, kExamples);
  out << ".SH SEE ALSO\n.BR systemctl (1),\n.BR journalctl (1),\n.BR systemd.service (5)";
  return out.str();
}

tl::unexpected<Error> usage_error(CLI::App& app, const CLI::ParseError& error) {
  std::string what = error.what();
  std::ranges::replace(what, '\n', ' ');
  auto parsed = app.get_subcommands();
  if (!parsed.empty() && what.starts_with(parsed.front()->get_name() + ": "))  // an argument's name
    what.erase(0, parsed.front()->get_name().size() + 2);
  if (!parsed.empty())
    return fail(ExitCode::usage, parsed.front()->get_name() + ": " + what,
                "kdtreectl " + parsed.front()->get_name() + " --help");
  const auto left = app.remaining(true);
  auto word = std::ranges::find_if(left, [](const auto& arg) { return !arg.starts_with("-"); });
  const bool no_such_verb =
      error.get_name() == "ExtrasError" || error.get_name() == "RequiredError";
  if (no_such_verb && word != left.end()) {
    std::string verbs;
    for (const auto* verb : app.get_subcommands({}))
      if (!verb->get_group().empty()) verbs += (verbs.empty() ? "" : ", ") + verb->get_name();
    return fail(ExitCode::usage, "no verb '" + *word + "'", "verbs are " + verbs);
  }
  return fail(ExitCode::usage, no_such_verb ? "which verb?" : what, "kdtreectl --help");
}

}  // namespace kdtree
