// hetcomm_bench measures latency and bandwidth by size and path. A process has one of four roles:
//   - the driver on one host, which starts ranks and peers and reports
//   - a rank or runner that the driver started
//   - one rank of a job that mpirun or torchrun started
//   - one of two processes that the user started on two hosts
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/core.h>

#include <hetcomm/info.h>

#include "bench/compare.h"
#include "bench/implementation.h"
#include "bench/job_tests.h"
#include "bench/memcpy.h"
#include "bench/options.h"
#include "bench/output.h"
#include "bench/probe.h"
#include "bench/python.h"
#include "bench/rank.h"
#include "bench/report.h"
#include "bench/tests.h"
#include "bench/works.h"
#include "tools/common/job.h"
#include "tools/common/launch.h"

namespace bench {
namespace {

// --- output --------------------------------------------------------------------------------------

std::string render(const Report& report, const std::string& format) {
  if (format == "json") return render_json(report);
  if (format == "csv") return render_csv(report);
  return format == "osu" ? render_osu(report) : render_table(report);
}

// Prints the report, and returns the exit status.
int finish(const Options& options, Report report) {
  if (options.settings.interleave) {
    compare_variants(std::exchange(report.rows, {}), options.rounds.value_or(kRounds), &report);
  }
  bool written = print(options.output, render(report, options.output.format));
  written &= draw_plot(options.output, render_json(report));
  int64_t wrong = 0;
  for (const Row& row : report.rows) {
    wrong += std::max<int64_t>(row.measured.wrong, 0);
    if (row.measured.in_place_wrong > 0) wrong += static_cast<int64_t>(row.measured.in_place_wrong);
  }
  if (wrong > 0) {
    std::fprintf(stderr, "hetcomm_bench: %lld bytes or elements arrived wrong\n",
                 static_cast<long long>(wrong));
  }
  return written && wrong == 0 ? kOk : kFailed;
}

std::string host_text() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  const size_t usable = tools::usable_cpus().size();
  return fmt::format("{}, {} usable core{}", name, usable, usable == 1 ? "" : "s");
}

// Adds a note to the report if other programs load this host, since they change the results.
void note_load(Report* report) {
  constexpr double kQuiet = 0.5;
  double load = 0;
  if (getloadavg(&load, 1) != 1 || load < kQuiet) return;
  report->notes.push_back(
      fmt::format("this host was busy before the measurement: load average {:.1f}", load));
}

Report start_report(int argc, char** argv) {
  Report report;
  report.version = hetcomm_version_string();
  report.build = hetcomm_build_string();
  report.host = host_text();
  for (int i = 0; i < argc; ++i) report.command += (i == 0 ? "" : " ") + std::string(argv[i]);
  note_load(&report);
  return report;
}

// --- the driver ----------------------------------------------------------------------------------

std::string placement_note(double before, double after) {
  if (std::isnan(before) || std::isnan(after)) return "cores: fewer than two, not probed";
  return fmt::format(
      "cores: {} (a cache line takes {} usec from one to the other before, {} after)",
      placement_between(before, after), number_text(before), number_text(after));
}

int drive_alone(const Options& options, const std::vector<Work>& works, Report report) {
  ProgressLine progress;
  const Implementation hetcomm = make_hetcomm(works);
  const double before = probe_hand_over_us();
  for (size_t number = 0; number < works.size(); ++number) {
    const Work& work = works[number];
    size_t done = 0;
    progress.show(fmt::format("{} over {}", work.workload.test, work.transport));
    const std::string failure =
        measure(hetcomm, number, work, options.output.silence_seconds, [&](const Row& row) {
          report.rows.push_back(row);
          progress.show(fmt::format("{} over {}: {} of {} sizes ({} bytes: {})", work.workload.test,
                                    work.transport, ++done, work.workload.points.size(),
                                    size_text(row.measured.point.bytes), number_text(figure(row))));
        });
    if (failure.empty()) continue;
    progress.clear();
    std::fprintf(stderr, "hetcomm_bench: %s over %s: %s\n", work.workload.test.c_str(),
                 work.transport.c_str(), failure.c_str());
    return kFailed;
  }
  report.notes.push_back(placement_note(before, probe_hand_over_us()));
  progress.clear();
  return finish(options, std::move(report));
}

int drive_comparison(const Options& options, const std::vector<Work>& works, Report report) {
  ProgressLine progress;
  progress.show("looking for the peers");
  Peers peers(options.peers, works);
  progress.clear();
  std::vector<Implementation> implementations = {make_hetcomm(works)};
  for (Implementation& peer : peers.take()) implementations.push_back(std::move(peer));
  for (const auto& [name, complaint] : peers.complaints()) {
    std::fprintf(stderr, "hetcomm_bench: --compare %s: %s\n", name.c_str(), complaint.c_str());
    report.notes.push_back(fmt::format("{}: {}", name, complaint));
  }
  if (implementations.size() == 1) {
    std::fputs("hetcomm_bench: there is nothing to compare with\n", stderr);
    return kFailed;
  }
  const std::string failure = compare(
      implementations, works, options.rounds.value_or(kRounds), options.output.silence_seconds,
      [&](const std::string& text) { progress.show(text); }, &report);
  progress.clear();
  if (failure.empty()) return finish(options, std::move(report));
  std::fprintf(stderr, "hetcomm_bench: %s\n", failure.c_str());
  return kFailed;
}

// --- ranks ---------------------------------------------------------------------------------------

// Runs `hetcomm_bench --runner WORD...`, which only the driver starts.
int run_words(int argc, char** argv) {
  Work work;
  int copies = 0;
  for (int i = 2; i < argc; ++i) {
    if (take_integer(argv[i], "copy", &copies) || decode_work_word(argv[i], &work)) continue;
    std::fprintf(stderr, "hetcomm_bench: unknown word '%s'\n", argv[i]);
    return kUsage;
  }
  return copies > 0 ? run_memcpy(work.workload) : run_as_runner(work);
}

int run_between_hosts(const Options& options, Report report) {
  // --timeout also limits how long a client tries to find the listener. A listener waits forever.
  if (options.output.silence_given) {
    setenv("HETCOMM_BOOTSTRAP_TIMEOUT", fmt::format("{}s", options.output.silence_seconds).c_str(),
           1);
  }
  report.rows = options.meeting.listen ? run_as_listener(options.meeting.port)
                                       : run_as_client(options.meeting.host, options.meeting.port,
                                                       make_works(options, true));
  return finish(options, std::move(report));
}

int run_launched(tools::Launcher launcher, const Options& options, Report report) {
  if (options.compares()) {
    std::fprintf(
        stderr,
        "hetcomm_bench: --compare starts its own processes: run it without mpirun or torchrun\n");
    return kUsage;
  }
  if (!has_python(options)) return kUsage;
  report.rows = run_in_job(launcher, make_works(options, true));
  return report.rows.empty() ? kOk : finish(options, std::move(report));
}

// Warns if a network interface was chosen for a run that does not use it.
void warn_of_idle_nic(const std::string& nic, const std::vector<Work>& works) {
  const auto may_use = [](const Work& work) {
    return work.transport == "rdma" || work.transport == "auto";
  };
  if (nic.empty() || std::any_of(works.begin(), works.end(), may_use)) return;
  std::fprintf(
      stderr,
      "hetcomm_bench: --nic %s is for rdma, which is not measured here: add --transport rdma\n",
      nic.c_str());
}

int run_program(int argc, char** argv) {
  // Ignores the fatal signal for exceeding the file size limit (ulimit -f), so that the write fails
  // with an error instead.
  std::signal(SIGXFSZ, SIG_IGN);
  if (argc > 1 && std::strcmp(argv[1], "--runner") == 0) return run_words(argc, argv);
  Options options;
  const Parsed parsed = parse_options(argc, argv, &options);
  if (parsed != Parsed::kRun) return parsed == Parsed::kDone ? kOk : kUsage;
  Report report = start_report(argc, argv);
  if (options.meeting.listen || !options.meeting.host.empty()) {
    return has_python(options) ? run_between_hosts(options, std::move(report)) : kUsage;
  }
  const tools::Launcher launcher = tools::detect_launcher();
  if (measures_job(options.tests.front())) {
    if (!can_write(options.output)) return kFailed;
    return has_python(options) ? run_job_test(launcher, options, argc, argv) : kUsage;
  }
  if (launcher != tools::Launcher::kNone) return run_launched(launcher, options, std::move(report));
  if (!can_write(options.output)) return kFailed;
  if (!has_python(options)) return kUsage;
  const std::vector<Work> works = make_works(options, false);
  warn_of_idle_nic(options.subject.nic, works);
  return options.compares() ? drive_comparison(options, works, std::move(report))
                            : drive_alone(options, works, std::move(report));
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_program(argc, argv); }
