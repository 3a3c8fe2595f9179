#include "bench/job_tests.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <hetcomm_plan/base.h>
#include <random>

#include <nlohmann/json.hpp>

#include "bench/output.h"
#include "bench/python.h"
#include "tools/common/launch.h"
#include "tools/common/mpi/bridge.h"
#include "tools/links/affinity.h"
#include "tools/links/links.h"

namespace bench {
namespace {

// With --check the links test fails if the model deviates by more than this from further
// measurements.
constexpr double kMaxDeviation = 0.10;
constexpr size_t kCheckRounds = 4;
constexpr int kFewRanks = 2;  // ranks to start by default, except for reshard

Work work_of_job(const SubjectOptions& subject) {
  Work work;
  work.progress = subject.progress;
  if (!subject.transports.empty()) work.transport = subject.transports.front();
  work.first_memory = subject.first_memory;
  work.second_memory = subject.second_memory;
  return work;
}

// Copies the duration, and the number of rounds if the test has rounds, from the command line to
// |own|, the test's options. Numbers that were not given keep their defaults.
template <typename OwnOptions>
void take_times(const Options& options, OwnOptions* own) {
  if (options.sizes.seconds > 0) own->seconds = options.sizes.seconds;
  if constexpr (requires { own->rounds; }) own->rounds = options.rounds.value_or(own->rounds);
}

// Calls |measure| with a function that shows progress.
template <typename Measure>
auto with_progress(Measure&& measure) {
  ProgressLine progress;
  return measure([&](const std::string& text) { progress.show(text); });
}

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::fprintf(stderr, "hetcomm_bench: %s\n", note.c_str());
}

int status_of(bool good) { return good ? kOk : kFailed; }

int run_links(tools::Launcher launcher, const Options& options) {
  tools::LinksOptions links;
  links.progress = options.subject.progress;
  links.transport = work_of_job(options.subject).transport;
  take_times(options, &links);
  if (options.subject.check) {
    links.check = kCheckRounds;
    links.seed = std::random_device()();
  }
  const tools::LinksResult result =
      with_progress([&](const auto& show) { return tools::measure_links(launcher, links, show); });
  if (result.measurements.empty()) return kOk;
  const OutputOptions& output = options.output;
  const int32_t form = output.format == "json" ? HETCOMM_PLAN_JSON : HETCOMM_PLAN_TEXT;
  const std::string text = tools::infer_links(result.measurements, form);
  print_notes(result.notes);
  for (const std::string& line : result.comparison) std::fprintf(stderr, "%s\n", line.c_str());
  bool good = print(output, text);
  if (!output.plot.empty()) {
    good &= write_file(output.plot, tools::infer_links(result.measurements, HETCOMM_PLAN_SVG));
  }
  if (options.subject.check) {
    std::fprintf(stderr, "hetcomm_bench: the model differs by at most %.1f %% (seed %u)\n",
                 result.worst * 100, links.seed);
    good &= result.worst <= kMaxDeviation;
  }
  return status_of(good);
}

int run_affinity(tools::Launcher launcher, const Options& options) {
  tools::AffinityOptions affinity;
  affinity.progress = options.subject.progress;
  affinity.transport = work_of_job(options.subject).transport;
  take_times(options, &affinity);
  const tools::AffinityResult result = with_progress(
      [&](const auto& show) { return tools::measure_affinity(launcher, affinity, show); });
  if (result.rows.empty()) return kOk;
  print_notes(result.notes);
  const bool json = options.output.format == "json";
  return status_of(
      print(options.output, json ? tools::affinity_json(result) : tools::affinity_table(result)));
}

int run_share(tools::Launcher launcher, const Options& options) {
  ShareOptions share = options.share;
  share.item_bytes = options.sizes.first_bytes.value_or(share.item_bytes);
  if (options.sizes.window > 0) share.depth = options.sizes.window;
  take_times(options, &share);
  const std::vector<ShareRow> rows = with_progress([&](const auto& show) {
    return measure_share(launcher, work_of_job(options.subject), share, show);
  });
  if (rows.empty()) return kOk;
  const bool json = options.output.format == "json";
  return status_of(print(options.output, json ? share_json(rows) : share_table(rows)));
}

int run_queue(tools::Launcher launcher, const Options& options) {
  QueueOptions queue = options.queue;
  if (queue.patterns == std::vector<std::string>{"share"}) return run_share(launcher, options);
  queue.item_bytes = options.sizes.first_bytes.value_or(queue.item_bytes);
  if (options.sizes.window > 0) queue.depth = options.sizes.window;
  queue.items = static_cast<int>(std::min<int64_t>(options.sizes.iterations, 1 << 20));
  take_times(options, &queue);
  const std::vector<QueueRow> rows = with_progress([&](const auto& show) {
    return measure_queue(launcher, work_of_job(options.subject), queue, show);
  });
  if (rows.empty()) return kOk;
  const std::string& format = options.output.format;
  return status_of(print(options.output, format == "json"  ? queue_json(rows)
                                         : format == "osu" ? queue_osu(rows)
                                                           : queue_table(rows)));
}

PipelineOptions pipeline_of(const Options& options) {
  PipelineOptions pipeline = options.pipeline;
  pipeline.compute = options.queue.computes.front();
  pipeline.item_bytes = options.sizes.first_bytes.value_or(pipeline.item_bytes);
  if (options.sizes.window > 0) pipeline.in_flight = static_cast<uint32_t>(options.sizes.window);
  pipeline.rounds = options.rounds.value_or(pipeline.rounds);
  return pipeline;
}

int run_pipeline(tools::Launcher launcher, const Options& options) {
  const std::vector<PipelineRow> rows = with_progress([&](const auto& show) {
    return measure_pipeline(launcher, work_of_job(options.subject), pipeline_of(options), show);
  });
  if (rows.empty()) return kOk;
  const std::string json = pipeline_json(rows);
  const bool printed =
      print(options.output, options.output.format == "json" ? json : pipeline_table(rows));
  return status_of(draw_plot(options.output, json) && printed);
}

// Measures pipelines over emulated links that the driver creates, or compares them with torch's.
int run_pipelines(const Options& options) {
  const PipelineOptions pipeline = pipeline_of(options);
  std::vector<double> delays_ms = pipeline.delays_ms;
  std::vector<int> rates_mbit = pipeline.rates_mbit;
  if (pipeline.makes_links()) {
    if (delays_ms.empty()) delays_ms = {0};
    if (rates_mbit.empty()) rates_mbit = {0};
  }
  nlohmann::ordered_json question = {
      {"program", tools::own_path()},
      {"ranks", options.subject.ranks > 0 ? options.subject.ranks : kFewRanks},
      {"schedules", pipeline.schedules},
      {"compute", pipeline.compute},
      {"stage_ms", pipeline.stage_ms},
      {"bytes", pipeline.item_bytes},
      {"in_flight", pipeline.in_flight},
      {"micro_batches", pipeline.micro_batches},
      {"rounds", pipeline.rounds},
      {"delays_ms", delays_ms},
      {"rates_mbit", rates_mbit},
      {"compares_torch", options.compares()}};
  std::string rows;
  std::string table;
  question["words"] = nlohmann::ordered_json::array();
  const auto add = [&](const char* option, const std::string& value) {
    if (value.empty()) return;
    question["words"].push_back(option);
    question["words"].push_back(value);
  };
  add("--progress", options.subject.progress);
  if (!options.subject.transports.empty()) add("--transport", options.subject.transports.front());
  const std::string failure = with_progress(
      [&](const auto& show) { return measure_pipelines(question.dump(), show, &rows, &table); });
  if (!failure.empty()) {
    std::fprintf(stderr, "hetcomm_bench: pipeline: %s\n", failure.c_str());
    return kFailed;
  }
  const bool printed = print(options.output, options.output.format == "json" ? rows : table);
  return status_of(draw_plot(options.output, rows) && printed);
}

// Measures a job, or with --simulate runs a simulation, for which |launcher| is unused.
int run_reshard(tools::Launcher launcher, const Options& options) {
  ReshardOptions reshard = options.reshard;
  reshard.bytes = options.sizes.first_bytes.value_or(reshard.bytes);
  take_times(options, &reshard);
  const std::vector<ReshardRow> rows = with_progress([&](const auto& show) {
    return reshard.simulate
               ? simulate_reshard(reshard, show)
               : measure_reshard(launcher, work_of_job(options.subject), reshard, show);
  });
  if (rows.empty()) return kOk;
  const std::string json = reshard_json(rows);
  const bool printed =
      print(options.output, options.output.format == "json" ? json : reshard_table(rows));
  return status_of(draw_plot(options.output, json) && printed);
}

// Starts ranks on this host with the same command line.
int start_ranks(const Options& options, int argc, char** argv) {
  std::vector<std::string> command = {tools::own_path()};
  command.insert(command.end(), argv + 1, argv + argc);
  tools::Launch ranks;
  const int few = options.asks_for("reshard") ? 8 : kFewRanks;
  ranks.processes =
      tools::ranks_on_this_host(command, options.subject.ranks > 0 ? options.subject.ranks : few);
  ranks.echo_errors = true;
  const std::string failure =
      tools::run(ranks, options.output.silence_seconds, [](std::string_view line) {
        std::fwrite(line.data(), 1, line.size(), stdout);
        std::fputc('\n', stdout);
      });
  if (failure.empty()) return kOk;
  std::fprintf(stderr, "hetcomm_bench: %s: %s\n", options.tests.front().c_str(), failure.c_str());
  return kFailed;
}

}  // namespace

int run_job_test(tools::Launcher launcher, const Options& options, int argc, char** argv) {
  if (options.reshard.simulate) return run_reshard(launcher, options);
  if (options.pipeline.makes_links() || (options.asks_for("pipeline") && options.compares())) {
    if (launcher == tools::Launcher::kNone) return run_pipelines(options);
    std::fputs(
        "hetcomm_bench: --delays, --rates and --compare start their own processes: run it without "
        "mpirun or torchrun\n",
        stderr);
    return kUsage;
  }
  if (launcher == tools::Launcher::kNone) return start_ranks(options, argc, argv);
  const int status = options.asks_for("reshard")    ? run_reshard(launcher, options)
                     : options.asks_for("pipeline") ? run_pipeline(launcher, options)
                     : options.asks_for("queue")    ? run_queue(launcher, options)
                     : options.asks_for("links")    ? run_links(launcher, options)
                                                    : run_affinity(launcher, options);
  tools::mpi_finish();
  return status;
}

}  // namespace bench
