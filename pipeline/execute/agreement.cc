#include "pipeline/execute/agreement.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "pipeline/execute/api.h"
#include "src/base/text.h"

namespace hetcomm::pipeline {
namespace {

constexpr size_t kMaxReason = 480;

// The message that each rank sends to the others. Integers are little-endian, as on x86 and ARM.
struct Verdict {
  uint64_t hash[2];
  JointCall call;
  int32_t code;
  char reason[kMaxReason];  // NUL-terminated
};
static_assert(sizeof(Verdict) == 504);

const char* name_of(JointCall call) {
  constexpr const char* kNames[] = {"create", "set_schedule", "set_gradients", "total"};
  const auto number = static_cast<size_t>(call);
  return number < std::size(kNames) ? kNames[number] : "another function";
}

Verdict verdict_of(JointCall call, const Status& own, const PlanHash& hash) {
  Verdict verdict{};
  verdict.call = call;
  verdict.hash[0] = hash[0];
  verdict.hash[1] = hash[1];
  verdict.code = static_cast<int32_t>(own.code());
  if (!own.ok()) {
    const std::string text =
        text_or_none([&] { return printable_beginning(own.text(), kMaxReason - 1); });
    std::memcpy(verdict.reason, text.data(), text.size());
  }
  return verdict;
}

Status judge(const std::vector<Verdict>& verdicts) {
  for (size_t rank = 0; rank < verdicts.size(); ++rank) {
    const Verdict& each = verdicts[rank];
    if (each.code == HETCOMM_OK) continue;
    const std::string_view reason(each.reason, strnlen(each.reason, kMaxReason));
    return status_or_code(Code::kAborted, [&] {
      return fmt::format("rank {} failed with {}: {}", rank, hetcomm_status_name(each.code),
                         printable(reason));
    });
  }
  for (size_t rank = 1; rank < verdicts.size(); ++rank) {
    if (verdicts[rank].call == verdicts[0].call) continue;
    return status_or_code(Code::kMismatch, [&] {
      return fmt::format("rank {} calls hetcomm_pipeline_{}(), and rank 0 hetcomm_pipeline_{}()",
                         rank, name_of(verdicts[rank].call), name_of(verdicts[0].call));
    });
  }
  for (size_t rank = 1; rank < verdicts.size(); ++rank) {
    const auto hash_at = [&](size_t at) {
      return PlanHash{verdicts[at].hash[0], verdicts[at].hash[1]};
    };
    if (hash_at(rank) == hash_at(0)) continue;
    return status_or_code(Code::kMismatch, [&] {
      return fmt::format("rank {} has a pipeline plan with the hash {}, and rank 0 one with {}",
                         rank, to_text(hash_at(rank)), to_text(hash_at(0)));
    });
  }
  return {};
}

// Returns memory for the verdicts of all ranks. If memory is lacking, retries for about a second,
// because the other ranks are waiting for this one.
Result<std::vector<Verdict>> make_room(size_t ranks) {
  constexpr int kTrials = 1000;
  for (int i = 0; i < kTrials; ++i) {
    try {
      return std::vector<Verdict>(ranks);
    } catch (const std::bad_alloc&) {
      wait_for_memory();
    }
  }
  return Code::kOutOfMemory;
}

}  // namespace

Agreement agree(hetcomm_communicator_t* communicator, JointCall call, const Status& own,
                const PlanHash& hash, uint64_t timeout_ns) {
  int32_t rank = 0;
  int32_t size = 0;
  Status asked = of_call(hetcomm_communicator_rank(communicator, &rank, &size));
  if (!asked.ok()) return {.status = std::move(asked)};
  const Verdict mine = verdict_of(call, own, hash);
  Result<std::vector<Verdict>> room = make_room(static_cast<size_t>(size));
  if (!room.ok()) return {.status = room.status()};
  std::vector<Verdict>& all = room.value();
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = timeout_ns;
  hetcomm_request_t* request = nullptr;
  Status told =
      of_call(hetcomm_allgather(communicator, hetcomm_buffer_host(&mine, sizeof(mine)),
                                hetcomm_buffer_host(all.data(), sizeof(mine) * all.size()),
                                HETCOMM_UINT8, &options, &request));
  if (told.ok()) told = wait(request);
  const bool all_know = told.ok();
  if (!own.ok()) return {own, all_know};
  if (!all_know) return {told.annotate("waiting for the pipeline plans of the other ranks")};
  return {judge(all), all_know};
}

Result<std::vector<std::vector<uint64_t>>> gather(hetcomm_communicator_t* communicator,
                                                  const std::vector<uint64_t>& own,
                                                  uint64_t timeout_ns) {
  int32_t rank = 0;
  int32_t size = 0;
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_communicator_rank(communicator, &rank, &size)));
  const auto ranks = static_cast<size_t>(size);
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = timeout_ns;
  const auto exchange = [&](const std::vector<uint64_t>& words, std::vector<uint64_t>& all) {
    all.resize(words.size() * ranks);
    const size_t bytes = words.size() * sizeof(uint64_t);
    hetcomm_request_t* request = nullptr;
    HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_allgather(
        communicator, hetcomm_buffer_host(words.data(), bytes),
        hetcomm_buffer_host(all.data(), bytes * ranks), HETCOMM_UINT64, &options, &request)));
    return wait(request);
  };
  std::vector<uint64_t> counts;
  HETCOMM_RETURN_IF_ERROR(exchange({own.size()}, counts));
  const uint64_t most = *std::max_element(counts.begin(), counts.end());
  std::vector<uint64_t> padded = own;
  padded.resize(most);
  std::vector<uint64_t> all;
  if (most > 0) HETCOMM_RETURN_IF_ERROR(exchange(padded, all));
  std::vector<std::vector<uint64_t>> told(ranks);
  for (size_t each = 0; each < ranks; ++each) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(each * most);
    told[each].assign(first, first + static_cast<std::ptrdiff_t>(counts[each]));
  }
  return told;
}

}  // namespace hetcomm::pipeline
