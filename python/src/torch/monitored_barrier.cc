#include "python/src/torch/monitored_barrier.h"

#include <algorithm>
#include <c10/util/Exception.h>
#include <cstring>
#include <string>
#include <vector>

#include "python/src/torch/tensors.h"

namespace hetcomm::torch_backend {
namespace {

// Tag bits of arrivals and verdicts. User tags, which have 32 bits, and sparse operations do not
// use them. The other bits contain the number of the barrier.
constexpr uint64_t kArrivalTag = uint64_t{1} << 61;
constexpr uint64_t kVerdictTag = uint64_t{1} << 60;
// Maximum size of a verdict in bytes. A verdict names the missing ranks. It is empty
// if all ranks have arrived.
constexpr int64_t kVerdictBytes = 1024;
// The other ranks wait this much longer than rank 0. Rank 0 then times out first, and can report
// which ranks are missing.
constexpr std::chrono::milliseconds kGrace(2000);
// Practically infinite, but other times can be added to it without overflow.
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365 * 100);

at::Tensor verdict_of(const std::string& text) {
  const auto length = std::min<int64_t>(static_cast<int64_t>(text.size()), kVerdictBytes - 1);
  at::Tensor verdict = at::empty({length}, at::kByte);
  std::memcpy(verdict.mutable_data_ptr(), text.data(), static_cast<size_t>(length));
  return verdict;
}

// Formats the same text as Gloo, which PyTorch users know, and adds the reason for the first
// missing rank.
std::string describe_missing(const std::vector<int>& missing, std::chrono::milliseconds limit,
                             const std::string& why) {
  std::string text = missing.size() == 1 ? "Rank " : "Ranks ";
  for (size_t i = 0; i < missing.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(missing[i]);
  }
  const std::string time = std::to_string(limit.count()) + " ms";
  text += " failed to pass monitoredBarrier in " + time + ": " + why;
  if (limit.count() == 0) text = "Rank 0 timed out in monitoredBarrier after " + time + ": " + text;
  return text;
}

}  // namespace

void MonitoredBarrier::run(int rank, int size, std::chrono::milliseconds timeout, bool wait_all) {
  const std::chrono::milliseconds limit =
      std::min(timeout < std::chrono::milliseconds::zero() ? poster_.timeout() : timeout, kLongest);
  const uint64_t turn = turns_.fetch_add(1, std::memory_order_relaxed);
  if (rank == 0) {
    watch_arrivals(size, turn, limit, wait_all);
  } else {
    arrive(rank, turn, limit);
  }
}

WorkRef MonitoredBarrier::post(const at::Tensor& tensor, int peer, uint64_t tag, bool sends,
                               std::chrono::milliseconds limit) {
  WorkRef work = poster_.make_work({.type = c10d::OpType::BARRIER,
                                    .name = "monitoredBarrier",
                                    .profiling = nullptr,
                                    .sequence = 0,
                                    .internal = true,
                                    .inputs = {},
                                    .results = {}});
  work->keep(tensor);
  hetcomm_operation_options_t message{};
  message.struct_size = sizeof(message);
  // A limit of 0 times out at once, even if the message has already arrived.
  message.timeout_ns = limit.count() == 0 ? 1 : poster_.timeout_ns(limit);
  const hetcomm_buffer_t buffer = host_buffer_of(tensor);
  poster_.start(work, [&](hetcomm_communicator_t* communicator, hetcomm_group_t*) {
    hetcomm_request_t* request = nullptr;
    check(work->name(), sends ? hetcomm_send(communicator, peer, tag, buffer, &message, &request)
                              : hetcomm_recv(communicator, peer, tag, HETCOMM_EXACT_TAG, buffer,
                                             &message, &request));
    work->add_request(request);
  });
  return work;
}

void MonitoredBarrier::watch_arrivals(int size, uint64_t turn, std::chrono::milliseconds limit,
                                      bool wait_all) {
  const at::Tensor nothing = at::empty({0}, at::kByte);
  std::vector<WorkRef> arrivals;
  for (int rank = 1; rank < size; ++rank) {
    arrivals.push_back(post(nothing, rank, kArrivalTag | turn, false, limit));
  }
  std::vector<int> missing;
  std::string why;  // the reason why the first missing rank has not arrived
  for (int rank = 1; rank < size; ++rank) {
    const WorkRef& arrival = arrivals[static_cast<size_t>(rank - 1)];
    if (!missing.empty() && !wait_all) arrival->abort();
    try {
      arrival->wait();
    } catch (const c10::Error& error) {
      if (missing.empty()) why = error.what_without_backtrace();
      if (missing.empty() || wait_all) missing.push_back(rank);
    }
  }
  const std::string text = missing.empty() ? "" : describe_missing(missing, limit, why);
  const at::Tensor verdict = verdict_of(text);
  // Rank 0 sends the verdict to all ranks, even to late ones, but waits only for those that have
  // arrived.
  std::vector<WorkRef> verdicts;
  for (int rank = 1; rank < size; ++rank) {
    const bool came = arrivals[static_cast<size_t>(rank - 1)]->isSuccess();
    try {
      const WorkRef told = post(verdict, rank, kVerdictTag | turn, true, kGrace);
      if (came) verdicts.push_back(told);
    } catch (const c10::Error&) {
      if (missing.empty()) throw;
    }
  }
  for (const WorkRef& told : verdicts) {
    try {
      told->wait();
    } catch (const c10::Error&) {
      if (missing.empty()) throw;
    }
  }
  if (!missing.empty()) C10_THROW_ERROR(DistBackendError, "hetcomm: monitoredBarrier: " + text);
}

void MonitoredBarrier::arrive(int rank, uint64_t turn, std::chrono::milliseconds limit) {
  const at::Tensor verdict = at::zeros({kVerdictBytes}, at::kByte);
  std::string why;
  try {
    const auto patience = limit + kGrace;
    const WorkRef told = post(verdict, 0, kVerdictTag | turn, false, patience);
    post(at::empty({0}, at::kByte), 0, kArrivalTag | turn, true, patience);
    told->wait();
    why = static_cast<const char*>(verdict.const_data_ptr());
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
  }
  if (why.empty()) return;
  C10_THROW_ERROR(DistBackendError, "hetcomm: monitoredBarrier: Rank " + std::to_string(rank) +
                                        " successfully reached monitoredBarrier, but received "
                                        "errors while waiting for send/recv from rank 0: " +
                                        why);
}

}  // namespace hetcomm::torch_backend
