#include "pipeline/schedule/named.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "pipeline/schedule/faults.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/warmups.h"
#include "src/base/text.h"
#include "src/present/nearest.h"

namespace hetcomm::pipeline {
namespace {

using Parameters = ScheduleParameters;

// The parameters that a schedule has in addition to the counts of ranks and micro-batches.
struct Takes {
  bool warmups = false;
  bool slow_boundaries = false;
  bool recomputed_stages = false;
  bool epsilon = false;
  uint32_t chunks = 1;      // stages on each rank; with |any_chunks|, the default
  bool any_chunks = false;  // true if any number of stages on each rank is supported
};

struct Entry {
  const char* name;
  const char* pytorch;  // the name of the PyTorch class, or null
  Takes takes;
  Result<Schedule> (*make)(const Parameters& parameters, std::vector<uint32_t>& exposed);
};

Result<std::vector<bool>> chosen(const std::vector<uint32_t>& given, size_t count,
                                 std::string_view what) {
  std::vector<bool> flags(count);
  for (const uint32_t each : given) {
    if (each >= count) return invalid(fmt::format("there is no {} {}", what, each));
    flags[each] = true;
  }
  return flags;
}

std::vector<uint32_t> or_given(const Parameters& parameters, std::vector<uint32_t> rule) {
  return parameters.warmups.empty() ? std::move(rule) : parameters.warmups;
}

Result<Schedule> make_virtual(const Parameters& p, std::vector<uint32_t>&) {
  Result<std::vector<bool>> slow = chosen(p.slow_boundaries, p.ranks - 1, "boundary behind stage");
  if (!slow.ok()) return slow.status();
  return one_f_one_b(or_given(p, virtual_warmups(slow.value())), p.micro_batches);
}

Result<Schedule> make_hiding(const Parameters& p, std::vector<uint32_t>& exposed) {
  if (p.stage_ns.size() != p.ranks || p.boundaries.size() + 1 != p.ranks) {
    return invalid(
        fmt::format("H-1F1B on {} ranks needs the times of {} stages and {} boundaries, and "
                    "{} and {} are given",
                    p.ranks, p.ranks, p.ranks - 1, p.stage_ns.size(), p.boundaries.size()));
  }
  HidingWarmups warmups = hiding_warmups(p.stage_ns, p.boundaries, p.epsilon_ppm);
  exposed = std::move(warmups.exposed);
  return one_f_one_b(or_given(p, std::move(warmups.counts)), p.micro_batches);
}

Result<Schedule> make_four_phase(const Parameters& p, std::vector<uint32_t>&) {
  Result<std::vector<bool>> stages = chosen(p.recomputed_stages, p.ranks, "stage");
  if (!stages.ok()) return stages.status();
  return four_phase(or_given(p, plain_warmups(p.ranks)), stages.value(), p.micro_batches);
}

const std::vector<Entry>& entries() {
  using Exposed = std::vector<uint32_t>&;
  static const std::vector<Entry> all = {
      {"gpipe",
       "GPipe",
       {},
       [](const Parameters& p, Exposed) { return gpipe(p.ranks, p.micro_batches); }},
      {"1f1b",
       "1F1B",
       {.warmups = true},
       [](const Parameters& p, Exposed) {
         return one_f_one_b(or_given(p, plain_warmups(p.ranks)), p.micro_batches);
       }},
      {"eager-1f1b",
       nullptr,
       {.warmups = true},
       [](const Parameters& p, Exposed) {
         return one_f_one_b(or_given(p, eager_warmups(p.ranks)), p.micro_batches);
       }},
      {"virtual-1f1b", nullptr, {.warmups = true, .slow_boundaries = true}, make_virtual},
      {"h-1f1b", nullptr, {.warmups = true, .epsilon = true}, make_hiding},
      {"four-phase", nullptr, {.warmups = true, .recomputed_stages = true}, make_four_phase},
      {"zb-h1",
       nullptr,
       {},
       [](const Parameters& p, Exposed) { return zero_bubble_h1(p.ranks, p.micro_batches); }},
      {"zb-h2",
       nullptr,
       {},
       [](const Parameters& p, Exposed) { return zero_bubble_h2(p.ranks, p.micro_batches); }},
      {"looped-bfs",
       "LoopedBFS",
       {.chunks = 2, .any_chunks = true},
       [](const Parameters& p, Exposed) {
         return looped_breadth_first(p.ranks, p.chunks, p.micro_batches);
       }},
      {"interleaved-1f1b",
       "Interleaved1F1B",
       {.chunks = 2, .any_chunks = true},
       [](const Parameters& p, Exposed) {
         return interleaved(p.ranks, p.chunks, p.micro_batches);
       }},
      {"interleaved-zb",
       "InterleavedZeroBubble",
       {.chunks = 2, .any_chunks = true},
       [](const Parameters& p, Exposed) {
         return interleaved_zero_bubble(p.ranks, p.chunks, p.micro_batches);
       }},
      {"zb-v",
       "ZBVZeroBubble",
       {.chunks = 2},
       [](const Parameters& p, Exposed) { return zero_bubble_v(p.ranks, p.micro_batches); }},
      {"dualpipe-v",
       "DualPipeV",
       {.chunks = 2},
       [](const Parameters& p, Exposed) { return dual_pipe_v(p.ranks, p.micro_batches); }},
      {"forward-only",
       nullptr,
       {.chunks = 1, .any_chunks = true},
       [](const Parameters& p, Exposed) {
         return forward_only(p.ranks, p.chunks, p.micro_batches);
       }},
  };
  return all;
}

bool is_same_word(std::string_view a, std::string_view b) {
  const auto lower = [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char one, char other) { return lower(one) == lower(other); });
}

const Entry* find(std::string_view name) {
  for (const Entry& each : entries()) {
    if (is_same_word(name, each.name)) return &each;
    if (each.pytorch != nullptr && is_same_word(name, each.pytorch)) return &each;
  }
  return nullptr;
}

// Fails if |parameters| has a field that the schedule does not support.
Status check_parameters(const Entry& entry, const Parameters& parameters) {
  const auto refuse = [&](bool given, bool takes, std::string_view what) {
    return given && !takes ? invalid(fmt::format("{} takes no {}", entry.name, what)) : Status();
  };
  const Takes& takes = entry.takes;
  HETCOMM_RETURN_IF_ERROR(refuse(!parameters.warmups.empty(), takes.warmups, "warm-up counts"));
  HETCOMM_RETURN_IF_ERROR(
      refuse(!parameters.slow_boundaries.empty(), takes.slow_boundaries, "slow boundaries"));
  HETCOMM_RETURN_IF_ERROR(
      refuse(!parameters.recomputed_stages.empty(), takes.recomputed_stages, "recomputation"));
  HETCOMM_RETURN_IF_ERROR(refuse(parameters.epsilon_ppm != 0, takes.epsilon, "epsilon"));
  if (!parameters.warmups.empty() && parameters.warmups.size() != parameters.ranks) {
    return invalid(
        fmt::format("{} warm-up counts for {} ranks", parameters.warmups.size(), parameters.ranks));
  }
  if (parameters.chunks == 0 || takes.any_chunks || parameters.chunks == takes.chunks) return {};
  return invalid(fmt::format("{} has {} stages on each rank, not {}", entry.name, takes.chunks,
                             parameters.chunks));
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Entry& each : entries()) all.emplace_back(each.name);
    return all;
  }();
  return names;
}

Result<NamedSchedule> make_schedule(std::string_view name, const Parameters& parameters) {
  const Entry* const entry = find(name);
  if (entry == nullptr) {
    return Status(Code::kNotFound, fmt::format("there is no schedule '{}'{}", printable(name),
                                               present::did_you_mean(name, schedule_names())));
  }
  if (parameters.ranks == 0) return invalid("a schedule needs a rank");
  if (parameters.ranks > kMaxStages) return invalid("a schedule has at most 16384 ranks");
  HETCOMM_RETURN_IF_ERROR(check_parameters(*entry, parameters));
  Parameters filled = parameters;
  if (filled.chunks == 0) filled.chunks = entry->takes.chunks;
  NamedSchedule named;
  Result<Schedule> schedule = entry->make(filled, named.exposed);
  if (!schedule.ok()) return schedule.status();
  named.schedule = std::move(schedule).value();
  return named;
}

}  // namespace hetcomm::pipeline
