#include "bench/pipeline.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <hetcomm/pipeline.h>

#include "bench/compute.h"
#include "bench/pipeline_draft.h"
#include "src/present/statistics.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kProbes = 9;

void require_pipeline(hetcomm_status_t status, const char* what) {
  if (status != HETCOMM_OK) {
    tools::fail(fmt::format("{}: {}: {}", what, hetcomm_status_name(status),
                            hetcomm_pipeline_last_error()));
  }
}

hetcomm_layout_t* layout_on(int rank, uint64_t bytes) {
  hetcomm_part_t part{};
  part.rank = rank;
  part.end[0] = bytes;
  hetcomm_layout_t* layout = nullptr;
  tools::require(hetcomm_layout_from_parts(1, &bytes, &part, 1, nullptr, &layout),
                 "measuring a link");
  return layout;
}

// A Way transfers data from one rank to another in the same way as a boundary of a pipeline. The
// receiver posts its receives ahead and notifies the sender.
class Way {
 public:
  Way(hetcomm_communicator_t* communicator, int rank, int from, int to, uint64_t bytes)
      : sends_(rank == from), data_(bytes) {
    hetcomm_layout_t* const source = layout_on(from, bytes);
    hetcomm_layout_t* const target = layout_on(to, bytes);
    const hetcomm_reshard_tensor_t tensor{source, target, HETCOMM_UINT8, HETCOMM_UINT8};
    hetcomm_reshard_options_t options{};
    options.struct_size = sizeof options;
    options.in_flight = 2;
    tools::require(hetcomm_reshard_create(communicator, &tensor, 1, &options, &plan_),
                   "measuring a link");
    for (hetcomm_layout_t* each : {source, target}) {
      tools::require(hetcomm_layout_destroy(each), "measuring a link");
    }
  }
  ~Way() { tools::require(hetcomm_reshard_destroy(plan_), "measuring a link"); }
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;

  hetcomm_request_t* start() {
    const hetcomm_buffer_t data = hetcomm_buffer_host(data_.data(), data_.size());
    hetcomm_request_t* request = nullptr;
    tools::require(hetcomm_reshard_start(plan_, sends_ ? &data : nullptr, sends_ ? nullptr : &data,
                                         nullptr, &request),
                   "measuring a link");
    return request;
  }

 private:
  const bool sends_;
  std::vector<std::byte> data_;
  hetcomm_reshard_t* plan_ = nullptr;
};

// Sends |bytes| from rank |from| to the next rank and back, several times. Returns the one-way
// time.
double one_way_us(hetcomm_communicator_t* communicator, int rank, int from, uint64_t bytes) {
  Way there(communicator, rank, from, from + 1, bytes);
  Way back(communicator, rank, from + 1, from, bytes);
  const bool is_first = rank == from;
  Way& out = is_first ? there : back;
  Way& in = is_first ? back : there;
  std::vector<double> times;
  hetcomm_request_t* received = in.start();
  for (int i = 0; i < kProbes; ++i) {
    const double start = now_us();
    hetcomm_request_t* sent = is_first ? out.start() : nullptr;
    tools::wait(received);
    times.push_back((now_us() - start) / 2);
    received = i + 1 < kProbes ? in.start() : nullptr;
    if (!is_first) sent = out.start();
    tools::wait(sent);
  }
  return hetcomm::present::median(times);
}

// Measures the links between neighbours, one after another. Returns all times on all ranks.
std::vector<LinkTime> measure_links(hetcomm_communicator_t* communicator, int rank, int ranks,
                                    uint64_t bytes) {
  std::vector<LinkTime> links;
  for (int from = 0; from + 1 < ranks; ++from) {
    LinkTime link;
    if (rank == from || rank == from + 1) {
      const auto one_way = [&](uint64_t size) {
        return one_way_us(communicator, rank, from, size);
      };
      static_cast<void>(one_way(bytes));  // opens the connections
      link.latency_us = one_way(8);
      link.busy_us = std::max(one_way(bytes) - link.latency_us, 0.0);
    }
    link.latency_us = tools::largest(communicator, link.latency_us);
    link.busy_us = tools::largest(communicator, link.busy_us);
    links.push_back(link);
  }
  return links;
}

// A Stage takes as long as the computation of a stage, but computes nothing.
struct Stage {
  Compute* compute = nullptr;
  double share = 1;  // the stage's part of the computation of a rank
  static hetcomm_status_t third(void* self, const hetcomm_pipeline_action_t*) {
    static_cast<Stage*>(self)->run(kThird);
    return HETCOMM_OK;
  }
  static hetcomm_status_t two_thirds(void* self, const hetcomm_pipeline_action_t*) {
    static_cast<Stage*>(self)->run(2 * kThird);
    return HETCOMM_OK;
  }
  void run(double part) const { compute->run(part * share); }
};

// A Pipeline runs one schedule with one number of micro-batches.
class Pipeline {
 public:
  Pipeline(hetcomm_communicator_t* communicator, const std::string& plan, size_t chunks,
           Compute& compute)
      : communicator_(communicator), stage_{&compute, 1 / static_cast<double>(chunks)} {
    hetcomm_pipeline_chunk_t chunk{};
    chunk.struct_size = sizeof(chunk);
    for (auto* each : {&chunk.forward, &chunk.input_grad, &chunk.weight_grad, &chunk.recompute}) {
      *each = {&Stage::third, &stage_};
    }
    chunk.backward = {&Stage::two_thirds, &stage_};
    const std::vector<hetcomm_pipeline_chunk_t> all(chunks, chunk);
    require_pipeline(hetcomm_pipeline_create(communicator, plan.c_str(), all.data(), all.size(),
                                             nullptr, &handle_),
                     "creating a pipeline");
  }
  ~Pipeline() { require_pipeline(hetcomm_pipeline_destroy(handle_), "destroying a pipeline"); }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Runs the pipeline. Returns the time in microseconds until the last rank is done.
  double run() {
    tools::require(hetcomm_communicator_barrier(communicator_, HETCOMM_TIMEOUT_INFINITE),
                   "meeting");
    const double start = now_us();
    require_pipeline(hetcomm_pipeline_run(handle_, nullptr), "running a pipeline");
    return tools::largest(communicator_, now_us() - start);
  }

  // Returns the steps of the last run on this rank, as JSON.
  std::string trace() const {
    std::string text;
    size_t size = 0;
    do {
      text.resize(size);
      require_pipeline(hetcomm_pipeline_trace(handle_, HETCOMM_PIPELINE_TRACE_JSON, text.size(),
                                              text.data(), &size),
                       "reading the steps of a run");
    } while (size > text.size());
    text.resize(size - 1);
    return text;
  }

 private:
  hetcomm_communicator_t* const communicator_;
  Stage stage_;
  hetcomm_pipeline_t* handle_ = nullptr;
};

// Measured holds one schedule with both numbers of micro-batches, and its results.
struct Measured {
  PipelineRow row;
  std::vector<Case> cases;
  std::vector<std::vector<uint32_t>> in_flight;
  std::vector<std::unique_ptr<Pipeline>> pipelines;
  size_t more_actions = 0;  // number of actions by which the longer run exceeds the shorter one
};

// A Job is the state that all schedules share.
struct Job {
  hetcomm_communicator_t* communicator = nullptr;
  int rank = 0;
  int ranks = 0;
  const PipelineOptions& options;
  double rank_us = 0;           // computation of a rank for a micro-batch
  std::vector<LinkTime> links;  // links[i] joins ranks i and i + 1
};

// Returns the time of a micro-batch: the difference between the times of the longer and the shorter
// run, divided by the number of additional micro-batches.
double slope(const PipelineOptions& options, double fewer, double more) {
  return (more - fewer) / (options.micro_batches[1] - options.micro_batches[0]);
}

Measured prepare(const Job& job, const std::string& schedule, Compute& compute) {
  const PipelineOptions& options = job.options;
  Measured measured;
  PipelineRow& row = measured.row;
  row.schedule = schedule;
  row.ranks = job.ranks;
  row.compute = options.compute;
  row.item_bytes = options.item_bytes;
  row.micro_batches = options.micro_batches;
  row.stage_us = job.rank_us;
  double forecast_us[2];
  double undelayed_us[2];
  size_t actions[2];
  for (size_t i = 0; i < 2; ++i) {
    Case of{.schedule = schedule, .ranks = job.ranks, .micro_batches = options.micro_batches[i]};
    of.stage_us = 1;
    const std::vector<uint32_t> rank_of = draft(of).rank_of;
    const size_t chunks = rank_of.size() / static_cast<size_t>(job.ranks);
    // The simulator requires a time even without computation.
    of.stage_us = std::max(job.rank_us, 1.0) / static_cast<double>(chunks);
    Case undelayed = of;
    // H-1F1B orders its steps by the times of the links. Without delays, Eager-1F1B has the same
    // steps.
    if (schedule == "h-1f1b") undelayed.schedule = "eager-1f1b";
    undelayed_us[i] = draft(undelayed).total_us;
    of.links = by_stage(rank_of, job.links);
    for (const LinkTime& each : of.links) {
      row.busy_us = std::max(row.busy_us, each.busy_us);
      row.latency_us = std::max(row.latency_us, each.latency_us);
    }
    const Draft known = draft(of);
    std::vector<uint32_t> in_flight = known.in_flight;
    for (uint32_t& each : in_flight) {
      each = options.in_flight > 0 ? options.in_flight : each + 1;
      row.in_flight = std::max(row.in_flight, each);
    }
    forecast_us[i] = draft(of, in_flight).total_us;
    actions[i] = known.actions;
    measured.pipelines.push_back(std::make_unique<Pipeline>(
        job.communicator, plan_of(of, known, in_flight, options.item_bytes), chunks, compute));
    measured.cases.push_back(std::move(of));
    measured.in_flight.push_back(std::move(in_flight));
  }
  measured.more_actions = actions[1] - actions[0];
  if (options.compute != "none") {
    row.forecast_us = slope(options, forecast_us[0], forecast_us[1]);
    row.undelayed_us = slope(options, undelayed_us[0], undelayed_us[1]);
  }
  return measured;
}

// Returns the texts of all ranks, on every rank. Shorter texts are padded with blanks.
std::vector<std::string> gather(const Job& job, std::string own) {
  const auto size =
      static_cast<size_t>(tools::largest(job.communicator, static_cast<double>(own.size())));
  own.resize(size, ' ');
  std::string all(size * static_cast<size_t>(job.ranks), ' ');
  hetcomm_request_t* request = nullptr;
  tools::require(hetcomm_allgather(job.communicator, hetcomm_buffer_host(own.data(), own.size()),
                                   hetcomm_buffer_host(all.data(), all.size()), HETCOMM_UINT8,
                                   nullptr, &request),
                 "gathering the steps of a run");
  tools::wait(request);
  std::vector<std::string> texts;
  for (size_t at = 0; at < all.size(); at += size) texts.push_back(all.substr(at, size));
  return texts;
}

// Simulates the last runs with the measured duration of each step.
void replay(const Job& job, Measured& measured) {
  std::array<double, 2> replayed{};
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<std::string> traces = gather(job, measured.pipelines[i]->trace());
    if (job.rank != 0) continue;
    replayed[i] = replayed_us(measured.cases[i], measured.in_flight[i], traces);
  }
  PipelineRow& row = measured.row;
  row.replayed_runs_us.push_back(replayed);
  std::vector<double> slopes;
  for (const auto& [fewer, more] : row.replayed_runs_us) {
    slopes.push_back(slope(job.options, fewer, more));
  }
  row.replayed_us = hetcomm::present::median(slopes);
}

void run_round(const Job& job, Measured& measured) {
  const PipelineOptions& options = job.options;
  const double fewer_us = measured.pipelines[0]->run();
  const double more_us = measured.pipelines[1]->run();
  PipelineRow& row = measured.row;
  row.runs_us.push_back({fewer_us, more_us});
  row.times_us.push_back(slope(options, fewer_us, more_us));
  row.measured_us = hetcomm::present::median(row.times_us);
  if (options.compute != "none") return replay(job, measured);
  row.overhead_us = row.measured_us * (options.micro_batches[1] - options.micro_batches[0]) /
                    static_cast<double>(measured.more_actions);
}

std::vector<PipelineRow> measure_all(const Job& job, Compute& compute,
                                     const std::function<void(const std::string&)>& progress) {
  const PipelineOptions& options = job.options;
  std::vector<Measured> all;
  for (const std::string& name : options.schedules) all.push_back(prepare(job, name, compute));
  for (int round = 0; round < options.rounds; ++round) {
    for (Measured& each : all) {
      progress(fmt::format("{}, round {} of {}", each.row.schedule, round + 1, options.rounds));
      run_round(job, each);
    }
  }
  std::vector<PipelineRow> rows;
  for (const Measured& each : all) rows.push_back(each.row);
  tools::require(hetcomm_communicator_barrier(job.communicator, HETCOMM_TIMEOUT_INFINITE),
                 "leaving together");
  return rows;
}

}  // namespace

std::vector<PipelineRow> measure_pipeline(tools::Launcher launcher, const Work& work,
                                          const PipelineOptions& options,
                                          const std::function<void(const std::string&)>& progress) {
  Work threaded = work;
  if (threaded.progress.empty()) threaded.progress = "thread";
  tools::Session session(launcher, 0, session_options(threaded));
  hetcomm_communicator_t* const communicator =
      session.create_communicator("pipeline", work.transport);
  progress("computation and links alone");
  const bool computes = options.compute != "none";
  Compute compute(options.compute == "burn", computes ? options.stage_ms * 1e3 : 0);
  Job job{.communicator = communicator,
          .rank = session.rank(),
          .ranks = session.ranks(),
          .options = options};
  if (computes) {
    job.rank_us =
        tools::largest(communicator, compute.measured_us(kThird) + compute.measured_us(2 * kThird));
  }
  job.links = measure_links(communicator, session.rank(), session.ranks(), options.item_bytes);
  std::vector<PipelineRow> rows = measure_all(job, compute, progress);
  if (session.rank() != 0) rows.clear();
  session.destroy_communicator(communicator);
  return rows;
}

std::string pipeline_table(const std::vector<PipelineRow>& rows) {
  std::string text =
      "# Times in us. stage: computation of a rank for a micro-batch; busy, latency: a "
      "boundary's\n"
      "# data on the link, and until it is there; measured, forecast, replayed, undelayed: a\n"
      "# micro-batch, as measured, as simulated, as simulated with each step as long as it was, "
      "and\n"
      "# as simulated over links that take no time; in flight: items of a boundary; overhead:\n"
      "# wall time of an action, with --compute none\n"
      "schedule           ranks compute      bytes     stage      busy   latency in flight"
      "  measured  forecast  replayed undelayed  overhead\n";
  for (const PipelineRow& row : rows) {
    text += fmt::format(
        "{:<18} {:>5} {:<7} {:>10} {:>9.1f} {:>9.1f} {:>9.1f} {:>9} {:>9.1f} {:>9.1f} "
        "{:>9.1f} {:>9.1f} {:>9.2f}\n",
        row.schedule, row.ranks, row.compute, row.item_bytes, row.stage_us, row.busy_us,
        row.latency_us, row.in_flight, row.measured_us, row.forecast_us, row.replayed_us,
        row.undelayed_us, row.overhead_us);
  }
  return text;
}

std::string pipeline_json(const std::vector<PipelineRow>& rows) {
  Json list = Json::array();
  for (const PipelineRow& row : rows) {
    Json json;
    json["test"] = "pipeline";
    json["schedule"] = row.schedule;
    json["ranks"] = row.ranks;
    json["compute"] = row.compute;
    json["item_bytes"] = row.item_bytes;
    json["micro_batches"] = row.micro_batches;
    json["stage_us"] = row.stage_us;
    json["busy_us"] = row.busy_us;
    json["latency_us"] = row.latency_us;
    json["in_flight"] = row.in_flight;
    json["measured_us"] = row.measured_us;
    json["forecast_us"] = row.forecast_us;
    json["replayed_us"] = row.replayed_us;
    json["undelayed_us"] = row.undelayed_us;
    json["overhead_us"] = row.overhead_us;
    json["times_us"] = row.times_us;
    json["runs_us"] = row.runs_us;
    json["replayed_runs_us"] = row.replayed_runs_us;
    list.push_back(std::move(json));
  }
  return list.dump(2) + "\n";
}

}  // namespace bench
