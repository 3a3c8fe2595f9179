// Prints how long the check and the simulators take for 1F1B on many stages. No test.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "pipeline/schedule/check.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/warmups.h"
#include "pipeline/simulate/events.h"
#include "pipeline/simulate/longest_path.h"

namespace hetcomm::pipeline {
namespace {

// Prints the median of |rounds| calls.
void measure(std::string_view what, int rounds, const std::function<bool()>& call) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (!call()) return fmt::print("{}: failed\n", what);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    times.push_back(time.count());
  }
  std::sort(times.begin(), times.end());
  fmt::print("{:>24} {:>12.3f} ms (fastest {:.3f})\n", what, times[times.size() / 2], times[0]);
}

void measure_all(uint32_t stages, uint32_t micro_batches, int rounds) {
  const Schedule schedule = one_f_one_b(plain_warmups(stages), micro_batches).value();
  PipelineTimes times;
  times.stages.assign(stages, {.forward_ns = 1000, .backward_ns = 2000});
  times.forward.assign(stages - 1, {.busy_ns = 100, .latency_ns = 50});
  times.backward = times.forward;
  EventInput input;
  EventPipeline& pipeline = input.pipelines.emplace_back();
  pipeline.schedule = schedule;
  pipeline.stages = times.stages;
  for (uint32_t i = 0; i < 2 * (stages - 1); ++i) {
    std::vector<Route>& routes = i % 2 == 0 ? pipeline.forward : pipeline.backward;
    routes.push_back({.hops = {{.busy_ns = 100, .latency_ns = 50, .resources = {i}}}});
  }
  input.resources = 2 * (stages - 1);
  fmt::print("{} stages, {} micro-batches\n", stages, micro_batches);
  measure("check", rounds, [&] { return check(schedule).ok(); });
  measure("longest path", rounds, [&] { return simulate(schedule, times).ok(); });
  const std::vector<uint32_t> in_flight(stages - 1, 1);
  measure("longest path, credits", rounds, [&] {
    return simulate(schedule, times, {.in_flight = in_flight, .keeps_spans = false}).ok();
  });
  measure("events", rounds, [&] { return simulate_events(input).ok(); });
}

}  // namespace
}  // namespace hetcomm::pipeline

int main() {
  hetcomm::pipeline::measure_all(8, 64, 1001);
  hetcomm::pipeline::measure_all(512, 4096, 5);
}
