#include "bench/reshard.h"

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "bench/compute.h"
#include "tools/links/reshard_flows.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;

// Fills in |*row| from |description|, a plan as JSON. If the plan is for auto, |*barred| receives,
// for each strategy that auto has considered, the reason why auto must not choose it, or "".
void read_plan(const std::string& description, ReshardRow* row,
               std::map<std::string, std::string>* barred) {
  const Json plan = Json::parse(description, nullptr, false);
  if (plan.is_discarded()) return;
  for (const Json& each : plan.value("considered", Json::array())) {
    (*barred)[each.value("strategy", "")] = each.value("refused", "");
  }
  row->chosen = plan.value("strategy", "");
  row->forecast_us = static_cast<double>(plan.value("forecast_ns", uint64_t{0})) * 1e-3;
}

void summarize(std::vector<double> times, ReshardRow* row) {
  if (times.empty()) return;
  row->times_us = times;
  std::sort(times.begin(), times.end());
  const auto at = [&](double part) {
    return times[static_cast<size_t>(part * static_cast<double>(times.size() - 1) + 0.5)];
  };
  row->runs = static_cast<int>(times.size());
  row->fastest_us = times.front();
  row->low_us = at(0.25);
  row->median_us = at(0.5);
  row->high_us = at(0.75);
  row->slowest_us = times.back();
}

// For each of the |rows| from index |first| on whose strategy auto must not choose, stores the
// reason.
void note_barred(const std::map<std::string, std::string>& barred, size_t first,
                 std::vector<ReshardRow>* rows) {
  for (size_t i = first; i < rows->size(); ++i) {
    const auto found = barred.find((*rows)[i].strategy);
    if (found != barred.end()) (*rows)[i].barred = found->second;
  }
}

// Returns the value of element |index| in the tensor, or in each term if the tensor is a sum.
// Values are small whole numbers, so that sums of a few terms are exact.
float element(uint64_t index) { return static_cast<float>(index % 4093); }

// Calls use(index in the rank's memory, index in the tensor) for each element of |rank|.
template <typename Use>
void for_each_element(const tools::LayoutHandle& layout, int32_t rank,
                      const std::vector<uint64_t>& shape, Use&& use) {
  size_t count = 0;
  tools::require(hetcomm_layout_parts(layout.get(), rank, 0, nullptr, &count),
                 "looking at a layout");
  std::vector<hetcomm_part_t> parts(count);
  tools::require(hetcomm_layout_parts(layout.get(), rank, count, parts.data(), &count),
                 "looking at a layout");
  for (const hetcomm_part_t& part : parts) {
    for (uint64_t i = part.begin[0]; i < part.end[0]; ++i) {
      for (uint64_t j = part.begin[1]; j < part.end[1]; ++j) {
        const uint64_t row = part.offset + (i - part.begin[0]) * part.strides[0] +
                             (j - part.begin[1]) * part.strides[1];
        const uint64_t first = (i * shape[1] + j) * shape[2];
        for (uint64_t k = part.begin[2]; k < part.end[2]; ++k) {
          use(row + (k - part.begin[2]) * part.strides[2], first + k);
        }
      }
    }
  }
}

// A Shard is a rank's part of the tensor, in host memory and possibly also on a device.
class Shard {
 public:
  Shard(const tools::Session& session, const std::string& kind, uint64_t elements)
      : values(elements) {
    if (kind == "host" || elements == 0) return;
    tools::require(
        hetcomm_memory_allocate(session.context(), session.find_device(kind), bytes(), &memory_),
        "allocating device memory");
  }
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;
  ~Shard() {
    if (memory_ != nullptr) tools::require(hetcomm_memory_destroy(memory_), "freeing");
  }

  hetcomm_buffer_t buffer() {
    return memory_ == nullptr ? hetcomm_buffer_host(values.data(), bytes())
                              : hetcomm_buffer_memory(memory_, 0, bytes());
  }
  // Copies |values| to the device, if there is one. load() copies them back.
  void store() {
    if (memory_ == nullptr) return;
    tools::require(hetcomm_memory_write(memory_, 0, values.data(), bytes()), "filling");
  }
  void load() {
    if (memory_ == nullptr) return;
    tools::require(hetcomm_memory_read(memory_, 0, values.data(), bytes()),
                   "looking at what has come");
  }

  std::vector<float> values;

 private:
  uint64_t bytes() const { return values.size() * sizeof(float); }
  hetcomm_memory_t* memory_ = nullptr;
};

// A Candidate is this rank's plan for one strategy in one case, with its measured times.
class Candidate {
 public:
  Candidate(hetcomm_communicator_t* communicator, const tools::LayoutHandle& source,
            const tools::LayoutHandle& destination, const ReshardOptions& options, ReshardRow row)
      : row_(std::move(row)) {
    const hetcomm_reshard_tensor_t tensor{source.get(), destination.get(), HETCOMM_FLOAT32,
                                          HETCOMM_FLOAT32};
    hetcomm_reshard_options_t wishes{};
    wishes.struct_size = sizeof(wishes);
    wishes.strategy = tools::strategy_number(row_.strategy);
    wishes.slice_bytes = options.slice_bytes;
    const hetcomm_status_t status =
        hetcomm_reshard_create(communicator, &tensor, 1, &wishes, &plan_);
    if (status == HETCOMM_UNSUPPORTED) {
      row_.refused = hetcomm_last_error();
      return;
    }
    tools::require(status, "planning");
    size_t size = 0;
    tools::require(hetcomm_reshard_describe(plan_, HETCOMM_RESHARD_JSON, 0, nullptr, &size),
                   "describing a plan");
    std::string text(size, '\0');
    tools::require(hetcomm_reshard_describe(plan_, HETCOMM_RESHARD_JSON, size, text.data(), &size),
                   "describing a plan");
    text.resize(size - 1);
    read_plan(text, &row_, &barred_);
  }
  Candidate(const Candidate&) = delete;
  Candidate& operator=(const Candidate&) = delete;
  ~Candidate() {
    if (plan_ != nullptr) tools::require(hetcomm_reshard_destroy(plan_), "destroying a plan");
  }

  const std::map<std::string, std::string>& barred() const { return barred_; }
  bool is_refused() const { return plan_ == nullptr; }
  const std::string& strategy() const { return row_.strategy; }
  // Executes the plan once. Returns the microseconds until the last rank is done.
  double run(hetcomm_communicator_t* communicator, const hetcomm_buffer_t& from,
             const hetcomm_buffer_t& to) {
    tools::require(hetcomm_communicator_barrier(communicator, HETCOMM_TIMEOUT_INFINITE), "meeting");
    const double start = now_us();
    hetcomm_request_t* request = nullptr;
    tools::require(hetcomm_reshard_start(plan_, &from, &to, nullptr, &request), "starting");
    tools::wait(request);
    return tools::largest(communicator, now_us() - start);
  }
  void add(double us) { times_.push_back(us); }
  ReshardRow finish() {
    summarize(times_, &row_);
    return row_;
  }

 private:
  ReshardRow row_;
  std::map<std::string, std::string> barred_;
  hetcomm_reshard_t* plan_ = nullptr;
  std::vector<double> times_;
};

std::vector<std::string> strategies_of(const ReshardOptions& options) {
  if (!options.strategies.empty()) return options.strategies;
  return {std::begin(tools::kStrategies), std::end(tools::kStrategies)};
}

}  // namespace

std::vector<ReshardRow> measure_reshard(tools::Launcher launcher, const Work& work,
                                        const ReshardOptions& options,
                                        const std::function<void(const std::string&)>& progress) {
  tools::Session session(launcher, 0, session_options(work));
  const int half = session.ranks() / 2;
  if (half == 0 || session.ranks() % 2 != 0) {
    tools::fail("reshard is measured between two halves of the ranks: start an even number");
  }
  hetcomm_communicator_t* const communicator =
      session.create_communicator("reshard", work.transport);
  const std::vector<tools::ReshardCase> cases =
      options.cases.empty() ? tools::all_cases(static_cast<uint64_t>(half)) : options.cases;
  const std::vector<uint64_t> shape = tools::shape_for(options.bytes);
  const uint64_t bytes = shape[0] * shape[1] * shape[2] * sizeof(float);
  std::vector<ReshardRow> rows;
  for (const tools::ReshardCase& each : cases) {
    if (each.source.ranks() > static_cast<uint64_t>(half) ||
        each.destination.ranks() > static_cast<uint64_t>(half)) {
      tools::fail(fmt::format("{} needs more than {} ranks on a side", tools::word_of(each), half));
    }
    try {
      const tools::LayoutHandle source(shape, each.source,
                                       tools::ranks_from(0, each.source.ranks()));
      const tools::LayoutHandle destination(shape, each.destination,
                                            tools::ranks_from(half, each.destination.ranks()));
      const std::string& kind = session.rank() < half ? work.first_memory : work.second_memory;
      Shard from(session, kind, source.elements(session.rank()));
      Shard to(session, kind, destination.elements(session.rank()));
      for_each_element(source, session.rank(), shape,
                       [&](uint64_t at, uint64_t index) { from.values[at] = element(index); });
      from.store();
      to.store();
      // Checks that all elements have arrived with the correct values.
      const auto check = [&](const std::string& strategy) {
        to.load();
        for_each_element(destination, session.rank(), shape, [&](uint64_t at, uint64_t index) {
          const float wanted = element(index) * static_cast<float>(each.source.terms);
          if (to.values[at] == wanted) return;
          tools::fail(fmt::format("{} by {}: element {} is {} on rank {}, and not {}",
                                  tools::word_of(each), strategy, index, to.values[at],
                                  session.rank(), wanted));
        });
        std::fill(to.values.begin(), to.values.end(), 0.0f);
        to.store();
      };
      std::vector<std::unique_ptr<Candidate>> candidates;
      for (const std::string& strategy : strategies_of(options)) {
        progress(fmt::format("{} by {}: planning", tools::word_of(each), strategy));
        candidates.push_back(std::make_unique<Candidate>(communicator, source, destination, options,
                                                         ReshardRow{.layouts = tools::word_of(each),
                                                                    .strategy = strategy,
                                                                    .memory = memory_text(work),
                                                                    .bytes = bytes}));
      }
      for (int round = 0; round <= options.rounds; ++round) {
        for (const auto& candidate : candidates) {
          if (candidate->is_refused()) continue;
          progress(fmt::format("{}: round {} of {}", tools::word_of(each), round, options.rounds));
          // Round 0 opens connections, and its result is checked. Its time is not counted.
          double spent = 0;
          const double share = round == 0 ? 0 : options.seconds * 1e6 / options.rounds;
          do {
            const double us = candidate->run(communicator, from.buffer(), to.buffer());
            if (round > 0) candidate->add(us);
            spent += us;
          } while (spent < share);
          if (round == 0) check(candidate->strategy());
        }
      }
      const size_t first = rows.size();
      for (const auto& candidate : candidates) rows.push_back(candidate->finish());
      for (const auto& candidate : candidates) note_barred(candidate->barred(), first, &rows);
      tools::require(hetcomm_communicator_barrier(communicator, HETCOMM_TIMEOUT_INFINITE),
                     "meeting");
    } catch (const std::runtime_error& error) {
      tools::fail(error.what());
    }
  }
  const bool reports = session.rank() == 0;
  session.destroy_communicator(communicator);
  return reports ? rows : std::vector<ReshardRow>{};
}

std::vector<ReshardRow> simulate_reshard(const ReshardOptions& options,
                                         const std::function<void(const std::string&)>& progress) {
  constexpr uint64_t kSide = 16;
  std::vector<tools::ReshardCase> cases = options.cases;
  if (cases.empty()) {
    cases = tools::all_cases(kSide);
    // Also simulates cases with replicas and with sums.
    for (const char* const word : {"4x4:2x2r4", "1x1r16:4x4", "4x1r4:1x4r4", "1x1:1x1r16",
                                   "1x4:1x2r8", "2x2p4:4x4", "4x1p4:1x4", "4x4:1x1"}) {
      (void)tools::parse_case(word, &cases.emplace_back());
    }
  }
  std::vector<ReshardRow> rows;
  for (const tools::Scenario& scenario : tools::scenarios(kSide, options.bytes)) {
    const std::vector<uint64_t> shape = tools::shape_for(scenario.bytes);
    for (const tools::ReshardCase& each : cases) {
      if (each.source.ranks() > kSide || each.destination.ranks() > kSide) {
        tools::fail(
            fmt::format("{} needs more than {} ranks on a side", tools::word_of(each), kSide));
      }
      try {
        const tools::LayoutHandle source(shape, each.source,
                                         tools::ranks_from(0, each.source.ranks()));
        const tools::LayoutHandle destination(shape, each.destination,
                                              tools::ranks_from(kSide, each.destination.ranks()));
        const size_t first = rows.size();
        std::map<std::string, std::string> barred;
        for (const std::string& strategy : strategies_of(options)) {
          progress(fmt::format("{}: {} by {}", scenario.name, tools::word_of(each), strategy));
          ReshardRow row{.scenario = scenario.name,
                         .layouts = tools::word_of(each),
                         .strategy = strategy,
                         .bytes = shape[0] * shape[1] * shape[2] * sizeof(float)};
          const std::string plan =
              tools::draft(scenario, source, destination, strategy, &row.refused);
          if (row.refused.empty()) {
            read_plan(plan, &row, &barred);
            summarize({tools::simulate(scenario, plan)}, &row);
          }
          rows.push_back(std::move(row));
        }
        note_barred(barred, first, &rows);
      } catch (const std::runtime_error& error) {
        tools::fail(error.what());
      }
    }
  }
  return rows;
}

}  // namespace bench
