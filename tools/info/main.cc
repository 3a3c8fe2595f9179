// hetcomm_info prints what the library, the machine and the environment provide. It uses only the
// public API, so that it shows what a program would get.
#include <algorithm>
#include <climits>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "src/present/nearest.h"
#include "tools/common/reshard_cases.h"
#include "tools/info/collect.h"
#include "tools/info/explain.h"
#include "tools/info/handles.h"
#include "tools/info/help.h"
#include "tools/info/plugin_probe.h"
#include "tools/info/print.h"
#include "tools/info/reshard.h"
#include "tools/info/schedule.h"
#include "tools/info/topology.h"

namespace hetcomm_info {
namespace {

struct Options {
  Sections sections;
  std::string format = "text";
  bool help = false;
  bool version = false;
  bool explain = false;
  std::optional<int32_t> peer;
  int32_t device = 0;
  bool topology = false;
  std::string file;
  bool reshard = false;
  ReshardQuestion question;
  bool schedule = false;
  ScheduleOrder order;
  bool json() const { return format == "json"; }
};

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

std::string unknown_word(const std::string& word) {
  const bool is_option = word.starts_with('-');
  const std::vector<std::string> known =
      is_option
          ? std::vector<std::string>{"--variables",      "--devices",        "--transports",
                                     "--format",         "--peer",           "--device",
                                     "--file",           "--help",           "--version",
                                     "--shape",          "--strategy",       "--links",
                                     "--ranks-per-host", "--same-ranks",     "--ranks",
                                     "--micro-batches",  "--chunks",         "--warmups",
                                     "--forward",        "--backward",       "--weight-grad",
                                     "--boundary",       "--epsilon",        "--overlap",
                                     "--memory-limit",   "--level",          "--receives-ahead",
                                     "--order",          "--effort",         "--send-buffers",
                                     "--in-flight",      "--traces",         "--may-split",
                                     "--pipeline",       "--routes",         "--reductions",
                                     "--send-waits",     "--gradient-bytes", "--nics"}
          : std::vector<std::string>{"explain", "topology", "reshard", "schedule"};
  if (std::count(known.begin(), known.end(), word) > 0) {
    return fmt::format("'{}' does not go with this command", word);
  }
  return fmt::format("unknown {} '{}'{}", is_option ? "option" : "command", word,
                     hetcomm::present::did_you_mean(word, known));
}

void add_schedule(CLI::App& command, ScheduleOrder& order) {
  constexpr uint32_t kMost = 1u << 20;
  command.add_option("schedule", order.what);
  command.add_option("--ranks", order.ranks)->check(CLI::Range(1u, kMost));
  command.add_option("--micro-batches", order.micro_batches)->check(CLI::Range(1u, kMost));
  command.add_option("--chunks", order.chunks)->check(CLI::Range(1u, kMost));
  command.add_option("--warmups", order.warmups)->delimiter(',');
  command.add_option("--forward", order.forward)->delimiter(',');
  command.add_option("--backward", order.backward)->delimiter(',');
  command.add_option("--weight-grad", order.weight_grad)->delimiter(',');
  command.add_option("--boundary", order.boundaries)->delimiter(',');
  command.add_option("--epsilon", order.epsilon_percent)->check(CLI::Range(0.0, 100.0));
  command.add_option("--overlap", order.overlap_percent)->check(CLI::Range(0.0, 100.0));
  command.add_option("--memory-limit", order.limit)
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
  command.add_option("--order", order.order)
      ->check(CLI::IsMember(std::vector<std::string>{"loop", "v"}));
  command.add_option("--effort", order.effort)->check(CLI::Range(uint64_t{1}, uint64_t{1} << 36));
  command.add_option("--level", order.level)
      ->check(CLI::IsMember(std::vector<std::string>{"compute", "transfers", "waits"}));
  command.add_option("--send-buffers", order.send_buffers)->check(CLI::Range(1u, kMost));
  command.add_option("--send-waits", order.send_waits)
      ->check(CLI::IsMember(std::vector<std::string>{"at_once", "before_reuse"}));
  command.add_option("--routes", order.routes);
  command.add_flag("--reductions", order.reductions);
  command.add_option("--in-flight", order.in_flight)->delimiter(',');
  command.add_option("--receives-ahead", order.receives_ahead)->check(CLI::Range(0u, kMost));
  command.add_option("--traces", order.traces)->delimiter(',');
  command.add_flag("--may-split", order.may_split);
  command.add_option("--pipeline", order.pipeline)->check(CLI::Range(0u, kMost));
  command.add_option("--links", order.links.model);
  command.add_option("--gradient-bytes", order.links.gradient_bytes)
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false));
  command.add_option("--nics", order.links.nics)->delimiter(',');
}

// Parses the command line. If it is wrong, prints an error and returns the exit status. Otherwise
// returns nullopt.
std::optional<int> parse(int argc, char** argv, Options& options) {
  CLI::App app;
  app.set_help_flag();  // help.cc prints the manual page
  const auto add_common = [&](CLI::App& command, const std::vector<std::string>& formats) {
    command.add_flag("-h,--help", options.help);
    command.add_option("--format", options.format)->check(CLI::IsMember(formats));
  };
  add_common(app, {"text", "json"});
  app.add_flag("--version", options.version);
  app.add_flag("--variables", options.sections.variables);
  app.add_flag("--devices", options.sections.devices);
  app.add_flag("--transports", options.sections.transports);
  CLI::App* const explain_command = app.add_subcommand("explain");
  explain_command->set_help_flag();
  add_common(*explain_command, {"text", "json"});
  explain_command->add_option("--peer", options.peer)->check(CLI::Range(0, INT_MAX));
  explain_command->add_option("--device", options.device)->check(CLI::Range(0, INT_MAX));
  CLI::App* const topology_command = app.add_subcommand("topology");
  topology_command->set_help_flag();
  add_common(*topology_command, {"text", "json", "svg"});
  topology_command->add_option("--file", options.file);
  CLI::App* const reshard_command = app.add_subcommand("reshard");
  reshard_command->set_help_flag();
  add_common(*reshard_command, {"text", "json", "svg"});
  reshard_command->add_option("layouts", options.question.layouts)->expected(2);
  reshard_command->add_option("--shape", options.question.shape)
      ->delimiter(',')
      ->expected(3)
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 32));
  reshard_command->add_option("--strategy", options.question.strategy)
      ->check(CLI::IsMember(
          std::vector<std::string>(std::begin(tools::kStrategies), std::end(tools::kStrategies))));
  reshard_command->add_option("--links", options.question.model);
  reshard_command->add_option("--ranks-per-host", options.question.ranks_per_host)
      ->check(CLI::Range(1, 4096));
  reshard_command->add_flag("--same-ranks", options.question.same_ranks);
  CLI::App* const schedule_command = app.add_subcommand("schedule");
  schedule_command->set_help_flag();
  add_common(*schedule_command, schedule_formats());
  add_schedule(*schedule_command, options.order);
  app.allow_extras();
  schedule_command->allow_extras();
  reshard_command->allow_extras();
  explain_command->allow_extras();
  topology_command->allow_extras();
  std::string wrong;
  try {
    app.parse(argc, argv);
    const std::vector<std::string> unknown = app.remaining(true);
    if (!unknown.empty()) wrong = unknown_word(unknown.front());
  } catch (const CLI::ParseError& error) {
    wrong = error.what();
  }
  if (!wrong.empty()) {
    std::fprintf(stderr, "hetcomm_info: %s\nTry 'hetcomm_info --help'.\n", wrong.c_str());
    return kUsage;
  }
  options.explain = explain_command->parsed();
  options.topology = topology_command->parsed();
  options.reshard = reshard_command->parsed();
  options.schedule = schedule_command->parsed();
  if (options.reshard && !options.help && options.question.layouts.size() != 2) {
    std::fputs(
        "hetcomm_info: reshard takes two layouts, such as 4x1 1x4\n"
        "Try 'hetcomm_info --help'.\n",
        stderr);
    return kUsage;
  }
  if (options.schedule && !options.help && options.order.what.empty()) {
    std::fputs(
        "hetcomm_info: schedule takes a name, such as 1f1b, or a file\n"
        "Try 'hetcomm_info --help'.\n",
        stderr);
    return kUsage;
  }
  return std::nullopt;
}

int report(const Options& options) {
  Report report;
  collect_library(report);
  const Context context = create_context();
  if (context == nullptr || !collect_machine(context.get(), report)) {
    // Version and build, which a bug report needs most, are still available.
    if (!options.json() && options.sections.all()) {
      std::printf("hetcomm %s, ABI %u\n%s\n", report.version.c_str(), report.abi_version,
                  report.build.c_str());
    }
    return kFailure;
  }
  print(options.json() ? as_json(report, options.sections)
                       : as_text(report, options.sections, output_width()));
  return kSuccess;
}

int worse(int one, int other) { return one != kSuccess ? one : other; }

int run(int argc, char** argv) {
  Options options;
  if (const std::optional<int> status = parse(argc, argv, options); status.has_value()) {
    return *status;
  }
  const bool makes_context =
      !options.help && !options.version && !options.reshard && !options.schedule;
  int status = !makes_context || probe_plugins() ? kSuccess : kFailure;
  if (options.help) {
    print(help_text(output_width()));
  } else if (options.version) {
    std::printf("hetcomm %s\n", hetcomm_version_string());
  } else if (options.explain) {
    status = worse(
        status, explain({.peer = options.peer, .device = options.device, .json = options.json()}));
  } else if (options.reshard) {
    status = print_reshard(options.question, options.format);
  } else if (options.schedule) {
    status = print_schedule(options.order, options.format);
  } else if (options.topology) {
    status = worse(status, print_topology(options.file, options.format));
  } else {
    status = worse(status, report(options));
  }
  // A full disk or a closed pipe also counts as a failure.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fputs("hetcomm_info: standard output cannot be written\n", stderr);
    if (status == kSuccess) status = kFailure;
  }
  return status;
}

}  // namespace
}  // namespace hetcomm_info

int main(int argc, char** argv) { return hetcomm_info::run(argc, argv); }
