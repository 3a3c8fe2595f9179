// hetcomm_bench: latency and bandwidth by size and path. This process has one of four roles: the
// driver on one host, which starts ranks and peers and reports; a rank or runner that the driver
// started; one rank of a job that mpirun or torchrun started; or one of two manually started hosts.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <hetcomm_plan/base.h>
#include <random>
#include <utility>

#include <fmt/core.h>

#include <hetcomm/info.h>

#include "bench/compare.h"
#include "bench/implementation.h"
#include "bench/memcpy.h"
#include "bench/options.h"
#include "bench/probe.h"
#include "bench/python.h"
#include "bench/queue.h"
#include "bench/queue_share.h"
#include "bench/rank.h"
#include "bench/report.h"
#include "bench/reshard.h"
#include "tools/common/job.h"
#include "tools/common/launch.h"
#include "tools/common/mpi/bridge.h"
#include "tools/common/session.h"
#include "tools/links/affinity.h"
#include "tools/links/links.h"

namespace bench {
namespace {

constexpr int kOk = 0;
constexpr int kFailed = 1;
constexpr int kUsage = 2;

// --- progress on standard error
// ------------------------------------------------------------------------

// A line that is overwritten on a terminal. Nothing elsewhere, so that logs stay short.
class ProgressLine {
 public:
  ~ProgressLine() { clear(); }
  void show(const std::string& text) {
    if (!terminal_) return;
    std::fprintf(stderr, "\r\033[K%s", text.c_str());
    std::fflush(stderr);
    shown_ = true;
  }
  void clear() {
    if (shown_) std::fputs("\r\033[K", stderr);
    shown_ = false;
  }

 private:
  bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool shown_ = false;
};

// --- output
// ----------------------------------------------------------------------------------------------

bool write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.flush();
  if (file) return true;
  std::fprintf(stderr, "hetcomm_bench: cannot write %s: %s\n", path.c_str(), std::strerror(errno));
  return false;
}

// Whether |path| can be written. Called before a long measurement, whose result would otherwise be
// lost. Does not change an existing file.
bool can_write(const std::string& path) {
  if (path.empty()) return true;
  const bool existed = access(path.c_str(), F_OK) == 0;
  const bool opened = std::ofstream(path, std::ios::binary | std::ios::app).is_open();
  const int error = errno;
  if (opened && !existed) unlink(path.c_str());
  if (!opened) {
    std::fprintf(stderr, "hetcomm_bench: cannot write %s: %s\n", path.c_str(),
                 std::strerror(error));
  }
  return opened;
}

bool draw_file(const Options& options, const std::string& json) {
  const std::string failure = draw(json, options.output.plot);
  if (failure.empty()) return true;
  std::fprintf(stderr, "hetcomm_bench: cannot draw %s: %s\n", options.output.plot.c_str(),
               failure.c_str());
  return false;
}

// Whether this process may have to draw: rank 0, or a process that is no rank.
bool may_draw() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    if (tools::is_set(name)) return std::strcmp(std::getenv(name), "0") == 0;
  }
  return true;
}

// Whether nothing is missing for the options that need Python. Says what is. Called before a long
// measurement, whose result would otherwise be lost.
bool has_python(const Options& options) {
  if (!options.comparison.peers.names.empty() && !driver_serves("--compare")) return false;
  // The library itself draws links.
  const bool draws = !options.output.plot.empty() && !options.measures_links() && may_draw();
  return !draws || driver_serves("--plot");
}

std::string render(const Report& report, const std::string& format) {
  if (format == "json") return render_json(report);
  if (format == "csv") return render_csv(report);
  return format == "osu" ? render_osu(report) : render_table(report);
}

// Prints the report, and returns the exit status.
int finish(const Options& options, Report report) {
  bool written = true;
  if (options.settings.interleave) {
    compare_variants(std::exchange(report.rows, {}), options.comparison.rounds, &report);
  }
  const std::string text = render(report, options.output.format);
  if (options.output.file.empty()) {
    std::fputs(text.c_str(), stdout);
    written = std::fflush(stdout) == 0;
  } else {
    written = write_file(options.output.file, text);
  }
  if (!options.output.plot.empty()) written &= draw_file(options, render_json(report));
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

// --- the driver
// ------------------------------------------------------------------------------------------

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
        measure(hetcomm, number, work, options.meeting.silence_seconds, [&](const Row& row) {
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
  Peers peers(options.comparison.peers, works);
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
      implementations, works, options.comparison.rounds, options.meeting.silence_seconds,
      [&](const std::string& text) { progress.show(text); }, &report);
  progress.clear();
  if (failure.empty()) return finish(options, std::move(report));
  std::fprintf(stderr, "hetcomm_bench: %s\n", failure.c_str());
  return kFailed;
}

// --- ranks
// -------------------------------------------------------------------------------------------------

// hetcomm_bench --runner WORD...: only the driver uses this.
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
  // The time limit includes the time in which the hosts find each other. A listener waits forever.
  if (options.meeting.silence_given) {
    setenv("HETCOMM_BOOTSTRAP_TIMEOUT", fmt::format("{}s", options.meeting.silence_seconds).c_str(),
           1);
  }
  report.rows = options.meeting.listen ? run_as_listener(options.meeting.port)
                                       : run_as_client(options.meeting.host, options.meeting.port,
                                                       make_works(options, true));
  return finish(options, std::move(report));
}

int run_launched(tools::Launcher launcher, const Options& options, Report report) {
  if (!options.comparison.peers.names.empty()) {
    std::fprintf(
        stderr,
        "hetcomm_bench: --compare starts its own processes: run it without mpirun or torchrun\n");
    return kUsage;
  }
  if (!has_python(options)) return kUsage;
  report.rows = run_in_job(launcher, make_works(options, true));
  return report.rows.empty() ? kOk : finish(options, std::move(report));
}

// --- links
// -------------------------------------------------------------------------------------------------

// Larger deviations of the model from further measurements count as wrong with --check.
constexpr double kMaxDeviation = 0.10;
constexpr size_t kCheckRounds = 4;

// Prints to the destination of --output.
bool print(const Options& options, const std::string& text) {
  if (!options.output.file.empty()) return write_file(options.output.file, text);
  std::fputs(text.c_str(), stdout);
  return std::fflush(stdout) == 0;
}

int report_links(const Options& options, const tools::LinksResult& result, uint32_t seed) {
  const bool json = options.output.format == "json";
  const std::string text =
      tools::infer_links(result.measurements, json ? HETCOMM_PLAN_JSON : HETCOMM_PLAN_TEXT);
  for (const std::string& note : result.notes) {
    std::fprintf(stderr, "hetcomm_bench: %s\n", note.c_str());
  }
  for (const std::string& line : result.comparison) std::fprintf(stderr, "%s\n", line.c_str());
  bool good = print(options, text);
  if (!options.output.plot.empty()) {
    good &=
        write_file(options.output.plot, tools::infer_links(result.measurements, HETCOMM_PLAN_SVG));
  }
  if (options.check) {
    std::fprintf(stderr, "hetcomm_bench: the model differs by at most %.1f %% (seed %u)\n",
                 result.worst * 100, seed);
    good &= result.worst <= kMaxDeviation;
  }
  return good ? kOk : kFailed;
}

Work work_of_job(const Options& options) {
  Work work;
  work.progress = options.progress;
  if (!options.transports.empty()) work.transport = options.transports.front();
  work.first_memory = options.first_memory;
  work.second_memory = options.second_memory;
  return work;
}

// Runs one rank of a job. Rank 0 reports.
int run_affinity_in_job(tools::Launcher launcher, const Options& options) {
  tools::AffinityOptions affinity;
  affinity.progress = options.progress;
  if (!options.transports.empty()) affinity.transport = options.transports.front();
  if (options.seconds > 0) affinity.seconds = options.seconds;
  if (options.comparison.rounds_given) affinity.rounds = options.comparison.rounds;
  ProgressLine progress;
  const tools::AffinityResult result = tools::measure_affinity(
      launcher, affinity, [&](const std::string& text) { progress.show(text); });
  progress.clear();
  if (result.rows.empty()) return kOk;
  for (const std::string& note : result.notes) {
    std::fprintf(stderr, "hetcomm_bench: %s\n", note.c_str());
  }
  const bool json = options.output.format == "json";
  return print(options, json ? tools::affinity_json(result) : tools::affinity_table(result))
             ? kOk
             : kFailed;
}

// Runs one rank of a job. Rank 0 reports.
int run_share_in_job(tools::Launcher launcher, const Options& options) {
  ShareOptions share;
  if (options.sizes.first_given) share.item_bytes = options.sizes.first_bytes;
  share.weights =
      options.queue.weights.empty() ? std::vector<uint32_t>{3, 1} : options.queue.weights;
  if (options.window > 0) share.depth = options.window;
  if (options.seconds > 0) share.seconds = options.seconds;
  if (options.comparison.rounds_given) share.rounds = options.comparison.rounds;
  ProgressLine progress;
  const std::vector<ShareRow> rows = measure_share(
      launcher, work_of_job(options), share, [&](const std::string& text) { progress.show(text); });
  progress.clear();
  if (rows.empty()) return kOk;
  const bool json = options.output.format == "json";
  return print(options, json ? share_json(rows) : share_table(rows)) ? kOk : kFailed;
}

// Runs one rank of a job. Rank 0 reports.
int run_queue_in_job(tools::Launcher launcher, const Options& options) {
  if (options.queue.patterns == std::vector<std::string>{"share"}) {
    return run_share_in_job(launcher, options);
  }
  QueueOptions queue;
  if (options.sizes.first_given) queue.item_bytes = options.sizes.first_bytes;
  queue.patterns = options.queue.patterns.empty() ? std::vector<std::string>{"stream", "1f1b"}
                                                  : options.queue.patterns;
  queue.computes =
      options.queue.computes.empty() ? std::vector<std::string>{"timer"} : options.queue.computes;
  queue.warmups = options.queue.warmups.empty() ? std::vector<int>{3, 4} : options.queue.warmups;
  queue.ratios =
      options.queue.ratios.empty() ? std::vector<double>{0.5, 1, 2} : options.queue.ratios;
  if (options.window > 0) queue.depth = options.window;
  if (options.iterations > 0) {
    queue.items = static_cast<int>(std::min<int64_t>(options.iterations, 1 << 20));
  }
  if (options.seconds > 0) queue.seconds = options.seconds;
  if (options.comparison.rounds_given) queue.rounds = options.comparison.rounds;
  ProgressLine progress;
  const std::vector<QueueRow> rows = measure_queue(
      launcher, work_of_job(options), queue, [&](const std::string& text) { progress.show(text); });
  progress.clear();
  if (rows.empty()) return kOk;
  return print(options, options.output.format == "json"  ? queue_json(rows)
                        : options.output.format == "osu" ? queue_osu(rows)
                                                         : queue_table(rows))
             ? kOk
             : kFailed;
}

// Runs one rank of a job (rank 0 reports), or a simulation without a job.
int run_reshard(tools::Launcher launcher, const Options& options) {
  ReshardOptions reshard;
  reshard.cases = options.reshard.cases;
  reshard.strategies = options.reshard.strategies;
  reshard.slice_bytes = options.reshard.slice_bytes;
  if (options.sizes.first_given) reshard.bytes = options.sizes.first_bytes;
  if (options.seconds > 0) reshard.seconds = options.seconds;
  if (options.comparison.rounds_given) reshard.rounds = options.comparison.rounds;
  ProgressLine progress;
  const auto show = [&](const std::string& text) { progress.show(text); };
  const std::vector<ReshardRow> rows =
      options.reshard.simulate ? simulate_reshard(reshard, show)
                               : measure_reshard(launcher, work_of_job(options), reshard, show);
  progress.clear();
  if (rows.empty()) return kOk;
  bool good =
      print(options, options.output.format == "json" ? reshard_json(rows) : reshard_table(rows));
  if (!options.output.plot.empty()) good &= draw_file(options, reshard_json(rows));
  return good ? kOk : kFailed;
}

// Runs one rank of a job. Rank 0 reports.
int run_links_in_job(tools::Launcher launcher, const Options& options) {
  tools::LinksOptions links;
  links.progress = options.progress;
  if (!options.transports.empty()) links.transport = options.transports.front();
  if (options.seconds > 0) links.seconds = options.seconds;
  if (options.check) {
    links.check = kCheckRounds;
    links.seed = std::random_device()();
  }
  ProgressLine progress;
  const tools::LinksResult result =
      tools::measure_links(launcher, links, [&](const std::string& text) { progress.show(text); });
  progress.clear();
  return result.measurements.empty() ? kOk : report_links(options, result, links.seed);
}

// Starts ranks on this host with the same command line.
int drive_job_test(const Options& options, int argc, char** argv) {
  std::vector<std::string> command = {tools::own_path()};
  command.insert(command.end(), argv + 1, argv + argc);
  tools::Launch ranks;
  const int few = options.measures_reshard() ? 8 : 2;
  ranks.processes = tools::ranks_on_this_host(command, options.ranks > 0 ? options.ranks : few);
  ranks.echo_errors = true;
  const std::string failure =
      tools::run(ranks, options.meeting.silence_seconds, [](std::string_view line) {
        std::fwrite(line.data(), 1, line.size(), stdout);
        std::fputc('\n', stdout);
      });
  if (failure.empty()) return kOk;
  std::fprintf(stderr, "hetcomm_bench: %s: %s\n", options.tests.front().c_str(), failure.c_str());
  return kFailed;
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
  // Exceeding the file size limit (ulimit -f) is then an error instead of a fatal signal.
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
  if (options.measures_job()) {
    if (!can_write(options.output.file) || !can_write(options.output.plot)) return kFailed;
    if (!has_python(options)) return kUsage;
    if (options.reshard.simulate) return run_reshard(launcher, options);
    if (launcher == tools::Launcher::kNone) return drive_job_test(options, argc, argv);
    const int status = options.measures_reshard() ? run_reshard(launcher, options)
                       : options.measures_queue() ? run_queue_in_job(launcher, options)
                       : options.measures_links() ? run_links_in_job(launcher, options)
                                                  : run_affinity_in_job(launcher, options);
    tools::mpi_finish();
    return status;
  }
  if (launcher != tools::Launcher::kNone) return run_launched(launcher, options, std::move(report));
  if (!can_write(options.output.file) || !can_write(options.output.plot)) return kFailed;
  if (!has_python(options)) return kUsage;
  const std::vector<Work> works = make_works(options, false);
  warn_of_idle_nic(options.nic, works);
  return options.comparison.peers.names.empty()
             ? drive_alone(options, works, std::move(report))
             : drive_comparison(options, works, std::move(report));
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_program(argc, argv); }
