#include "src/bootstrap/store_table.h"

#include <algorithm>

#include <fmt/format.h>

#include "src/base/bytes.h"
#include "src/base/clock.h"
#include "src/base/text.h"
#include "src/bootstrap/exchange_names.h"

namespace hetcomm {
namespace {

// Returns a time of waiting in whole seconds, as text.
std::string seconds(uint64_t ns) {
  return fmt::format("{} s", std::max<uint64_t>(1, (ns + 999'999'999) / 1'000'000'000));
}

}  // namespace

StoreTable::StoreTable(const Secret& job_key, ReplySink& sink)
    : StoreTable(job_key, sink, Limits()) {}

StoreTable::StoreTable(const Secret& job_key, ReplySink& sink, Limits limits)
    : job_key_(job_key), sink_(sink), limits_(limits) {}

bool StoreTable::handle(ClientId client, const std::string& name, StoreRequest request,
                        uint64_t now_ns) {
  if (waits_.contains(client)) return false;
  switch (request.operation) {
    case StoreOperation::kPut:
      put(client, std::move(request));
      return true;
    case StoreOperation::kGet:
      get(client, request, now_ns);
      return true;
    case StoreOperation::kGather:
      gather(client, name, std::move(request), now_ns);
      return true;
    case StoreOperation::kJobKey:
      sink_.send_reply(client, encode_success(job_key_));
      return true;
    case StoreOperation::kSurvivors:
      find_survivors(client, request);
      return true;
  }
  return false;
}

bool StoreTable::has_room(size_t keys, size_t bytes) const {
  return values_.size() + gathers_.size() + keys <= limits_.keys && bytes_ + bytes <= limits_.bytes;
}

void StoreTable::refuse(ClientId client, Code code, std::string text) {
  sink_.send_reply(client, encode_failure(Status(code, std::move(text))));
}

void StoreTable::put(ClientId client, StoreRequest request) {
  const auto old = values_.find(request.key);
  const size_t old_bytes = old == values_.end() ? 0 : old->second.size();
  const size_t key_bytes = old == values_.end() ? request.key.size() : 0;
  bytes_ -= old_bytes;
  if (!has_room(old == values_.end() ? 1 : 0, key_bytes + request.value.size())) {
    bytes_ += old_bytes;
    refuse(client, Code::kOutOfResources, "rank 0's store is full");
    return;
  }
  bytes_ += key_bytes + request.value.size();
  if (const auto readers = readers_.find(request.key); readers != readers_.end()) {
    const Frame frame = encode_success(request.value);
    const std::set<ClientId> waiting = readers->second;
    for (const ClientId reader : waiting) {
      stop_wait(reader);
      sink_.send_reply(reader, frame);
    }
  }
  values_[std::move(request.key)] = std::move(request.value);
  sink_.send_reply(client, encode_success({}));
}

void StoreTable::find_survivors(ClientId client, const StoreRequest& request) {
  const Result<std::vector<std::byte>> left = survivors_.ask(request);
  sink_.send_reply(client,
                   left.ok() ? encode_success(left.value()) : encode_failure(left.status()));
}

void StoreTable::get(ClientId client, const StoreRequest& request, uint64_t now_ns) {
  if (const auto found = values_.find(request.key); found != values_.end()) {
    sink_.send_reply(client, encode_success(found->second));
    return;
  }
  start_wait(client, {.key = request.key,
                      .in_gather = false,
                      .rank = 0,
                      .limit_ns = request.timeout_ns,
                      .deadline_ns = deadline_after(now_ns, request.timeout_ns)});
}

void StoreTable::gather(ClientId client, const std::string& name, StoreRequest request,
                        uint64_t now_ns) {
  const std::string& scope = request.key;
  if (const auto ended = ended_.find(scope); ended != ended_.end()) {
    refuse(client, Code::kBootstrapFailed, ended->second);
    return;
  }
  const bool is_new = !gathers_.contains(scope);
  if (!has_room(is_new ? 1 : 0, request.value.size())) {
    refuse(client, Code::kOutOfResources, "rank 0's store is full");
    return;
  }
  Gather& gather = gathers_[scope];
  if (is_new) {
    gather.size = request.size;
    gather.begun_ns = now_ns;
    gather.report_ns = deadline_after(now_ns, kFirstReportNs);
  }
  Status conflict;
  if (gather.size != request.size) {
    conflict = Status(Code::kBootstrapFailed,
                      fmt::format("rank {} ({}) says that the job has {} ranks, others say {}; set "
                                  "WORLD_SIZE alike on all ranks",
                                  request.rank, name, request.size, gather.size));
  } else if (const auto twin = gather.entries.find(request.rank); twin != gather.entries.end()) {
    conflict = Status(
        Code::kBootstrapFailed,
        fmt::format(
            "two processes say that they are rank {}: {} and {}; give each a RANK of its own",
            request.rank, twin->second.name, name));
  }
  if (!conflict.ok()) {
    fail_gather(scope, conflict);
    sink_.send_reply(client, encode_failure(conflict));
    return;
  }
  bytes_ += request.value.size();
  start_wait(client, {.key = scope,
                      .in_gather = true,
                      .rank = request.rank,
                      .limit_ns = request.limit_ns != 0 ? request.limit_ns : request.timeout_ns,
                      .deadline_ns = deadline_after(now_ns, request.timeout_ns)});
  gather.entries[request.rank] = {
      .client = client, .name = name, .value = std::move(request.value)};
  if (gather.entries.size() == static_cast<size_t>(gather.size)) complete(scope, gather);
}

void StoreTable::complete(const std::string& scope, const Gather& gather) {
  ByteWriter payload;
  for (const auto& [rank, entry] : gather.entries) payload.write_bytes(entry.value);
  const Frame frame = encode_success(payload.bytes());
  for (const auto& [rank, entry] : gather.entries) {
    stop_wait(entry.client);
    sink_.send_reply(entry.client, frame);
  }
  end_gather(scope,
             fmt::format("all ranks of '{}' have already joined; is another job using this port, "
                         "or a RANK duplicated?",
                         scope));
}

void StoreTable::fail_gather(const std::string& scope, const Status& why) {
  const Frame frame = encode_failure(why);
  for (const auto& [rank, entry] : gathers_[scope].entries) {
    stop_wait(entry.client);
    sink_.send_reply(entry.client, frame);
  }
  end_gather(scope, fmt::format("'{}' has failed before: {}", scope, why.text()));
}

void StoreTable::end_gather(const std::string& scope, std::string why) {
  std::string name = scope;
  for (const auto& [rank, entry] : gathers_[name].entries) bytes_ -= entry.value.size();
  gathers_.erase(name);
  if (ended_order_.size() == limits_.ended) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
  ended_order_.push_back(name);
  ended_[std::move(name)] = std::move(why);
}

void StoreTable::start_wait(ClientId client, Wait wait) {
  timers_.emplace(wait.deadline_ns, client);
  if (!wait.in_gather) readers_[wait.key].insert(client);
  waits_[client] = std::move(wait);
}

void StoreTable::stop_wait(ClientId client) {
  const auto found = waits_.find(client);
  if (found == waits_.end()) return;
  const Wait& wait = found->second;
  timers_.erase({wait.deadline_ns, client});
  if (!wait.in_gather) {
    const auto readers = readers_.find(wait.key);
    readers->second.erase(client);
    if (readers->second.empty()) readers_.erase(readers);
  }
  waits_.erase(found);
}

void StoreTable::disconnect(ClientId client) {
  const auto found = waits_.find(client);
  if (found == waits_.end()) return;
  const Wait wait = found->second;
  stop_wait(client);
  if (!wait.in_gather) return;
  const auto gather = gathers_.find(wait.key);
  const auto entry = gather->second.entries.find(wait.rank);
  bytes_ -= entry->second.value.size();
  gather->second.entries.erase(entry);
  if (gather->second.entries.empty()) gathers_.erase(gather);
}

void StoreTable::time_out(ClientId client) {
  const Wait wait = waits_.at(client);
  if (!wait.in_gather) {
    stop_wait(client);
    refuse(client, Code::kTimedOut, fmt::format("no rank has stored '{}' in time", wait.key));
    return;
  }
  const Gather& gather = gathers_[wait.key];
  fail_gather(wait.key,
              Status(Code::kBootstrapFailed,
                     fmt::format("{} did not join within {}; check that they started and reach "
                                 "MASTER_ADDR:MASTER_PORT, or raise HETCOMM_BOOTSTRAP_TIMEOUT{}",
                                 missing_from(gather), duration_text(wait.limit_ns), hint_)));
}

std::string StoreTable::missing_from(const Gather& gather) {
  std::vector<int> missing;
  for (int rank = 0; rank < gather.size; ++rank) {
    if (!gather.entries.contains(rank)) missing.push_back(rank);
  }
  return format_ranks(missing, gather.size);
}

void StoreTable::expire(uint64_t now_ns) {
  while (!timers_.empty() && timers_.begin()->first <= now_ns) {
    time_out(timers_.begin()->second);
  }
}

uint64_t StoreTable::next_timer_ns() const {
  uint64_t next = timers_.empty() ? kForever : timers_.begin()->first;
  for (const auto& [scope, gather] : gathers_) next = std::min(next, gather.report_ns);
  return next;
}

std::vector<std::string> StoreTable::take_reports(uint64_t now_ns) {
  std::vector<std::string> lines;
  for (auto& [scope, gather] : gathers_) {
    if (now_ns < gather.report_ns) continue;
    const uint64_t waited = now_ns - gather.begun_ns;
    gather.report_ns = deadline_after(now_ns, waited);
    lines.push_back(fmt::format("still waiting for {} of '{}' after {}{}", missing_from(gather),
                                scope, seconds(waited), hint_));
  }
  return lines;
}

void StoreTable::close() {
  const Status why(Code::kBootstrapFailed, "rank 0 has closed the job's store; see its log");
  while (!waits_.empty()) {
    const ClientId client = waits_.begin()->first;
    const Wait wait = waits_.begin()->second;
    if (wait.in_gather) {
      fail_gather(wait.key, why);
    } else {
      stop_wait(client);
      sink_.send_reply(client, encode_failure(why));
    }
  }
}

}  // namespace hetcomm
