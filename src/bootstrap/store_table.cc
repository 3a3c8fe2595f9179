#include "src/bootstrap/store_table.h"

#include <algorithm>

#include <fmt/core.h>

#include "src/base/bytes.h"
#include "src/base/text.h"
#include "src/bootstrap/exchange_names.h"
#include "src/system/clock.h"

namespace hetcomm {
namespace {

// Returns a duration as text, rounded up to at least one whole second.
std::string seconds(uint64_t ns) {
  return fmt::format("{} s", std::max<uint64_t>(1, (ns + 999'999'999) / 1'000'000'000));
}

// Returns the name of the gather to which |request| belongs, which is unique among gathers.
std::string gather_name(const StoreRequest& request) {
  if (request.form == ExchangeForm::kWhole) return "all " + request.key;
  return fmt::format("{}{}/{} {}", request.operation == StoreOperation::kBroadcast ? "from " : "",
                     request.first, request.step, request.key);
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
    case StoreOperation::kPut: {
      const Status status = put(std::move(request.key), std::move(request.value));
      sink_.send_reply(client, status.ok() ? encode_success({}) : encode_failure(status));
      return true;
    }
    case StoreOperation::kGet:
      get(client, request, now_ns);
      return true;
    case StoreOperation::kGather:
    case StoreOperation::kBroadcast:
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

Status StoreTable::put(std::string key, std::vector<std::byte> value) {
  const auto old = values_.find(key);
  const size_t old_bytes = old == values_.end() ? 0 : old->second.size();
  const size_t key_bytes = old == values_.end() ? key.size() : 0;
  bytes_ -= old_bytes;
  if (!has_room(old == values_.end() ? 1 : 0, key_bytes + value.size())) {
    bytes_ += old_bytes;
    return Status(Code::kOutOfResources, "rank 0's store is full");
  }
  bytes_ += key_bytes + value.size();
  if (const auto readers = readers_.find(key); readers != readers_.end()) {
    const Frame frame = encode_success(value);
    const std::set<ClientId> waiting = readers->second;
    for (const ClientId reader : waiting) {
      stop_wait(reader);
      sink_.send_reply(reader, frame);
    }
  }
  values_[std::move(key)] = std::move(value);
  return {};
}

Status StoreTable::take(Word word) {
  if (word.value) return put(std::move(word.key), *std::move(word.value));
  const auto found = values_.find(word.key);
  if (found == values_.end()) return {};
  bytes_ -= found->first.size() + found->second.size();
  values_.erase(found);
  return {};
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
                      .index = 0,
                      .limit_ns = request.timeout_ns,
                      .deadline_ns = deadline_after(now_ns, request.timeout_ns)});
}

// Returns whether |request| has the same form as the other requests in its scope. If not, fails it
// and all of them.
bool StoreTable::agree_on_form(ClientId client, const std::string& who,
                               const StoreRequest& request) {
  const auto found = scopes_.find(request.key);
  if (found == scopes_.end()) return true;
  Scope& scope = found->second;
  if (scope.conflict.empty() && scope.form == request.form) return true;
  if (scope.conflict.empty()) {
    const std::string rank = fmt::format("rank {} ({})", request.group().rank(request.rank), who);
    scope.conflict = disagreement_on_form(rank, request.key, request.form).text();
  }
  const Status why(Code::kBootstrapFailed, scope.conflict);
  std::vector<std::string> names;
  for (const auto& [name, gather] : gathers_) {
    if (gather.scope == request.key) names.push_back(name);
  }
  for (const std::string& name : names) fail_gather(name, why);
  sink_.send_reply(client, encode_failure(why));
  return false;
}

void StoreTable::start_gather(const std::string& name, const StoreRequest& request,
                              uint64_t now_ns) {
  gathers_[name] = {.scope = request.key,
                    .group = request.group(),
                    .ranks = request.ranks,
                    .operation = request.operation,
                    .begun_ns = now_ns,
                    .report_ns = deadline_after(now_ns, kFirstReportNs),
                    .entries = {}};
  Scope& scope = scopes_[request.key];
  scope.form = request.form;
  ++scope.gathers;
}

// Returns an error if |request| conflicts with the other requests of its gather, and OK otherwise.
Status StoreTable::conflict_of(const Gather& gather, const std::string& who,
                               const StoreRequest& request) {
  const int rank = request.group().rank(request.rank);
  if (gather.ranks != request.ranks) {
    return Status(Code::kBootstrapFailed,
                  fmt::format("rank {} ({}) says that the job has {} ranks, others say {}; set "
                              "WORLD_SIZE alike on all ranks",
                              rank, who, request.ranks, gather.ranks));
  }
  if (gather.group != request.group() || gather.operation != request.operation) {
    return Status(Code::kBootstrapFailed,
                  fmt::format("rank {} ({}) takes '{}' for another exchange than others do; does "
                              "every rank use the same release of hetcomm?",
                              rank, who, request.key));
  }
  const auto twin = gather.entries.find(request.rank);
  if (twin == gather.entries.end()) return {};
  return Status(
      Code::kBootstrapFailed,
      fmt::format("two processes say that they are rank {}: {} and {}; give each a RANK of its own",
                  rank, twin->second.name, who));
}

void StoreTable::gather(ClientId client, const std::string& who, StoreRequest request,
                        uint64_t now_ns) {
  if (!agree_on_form(client, who, request)) return;
  const std::string name = gather_name(request);
  if (const auto ended = ended_.find(name); ended != ended_.end()) {
    refuse(client, Code::kBootstrapFailed, ended->second.reason);
    return;
  }
  const bool is_new = !gathers_.contains(name);
  if (!has_room(is_new ? 1 : 0, request.value.size())) {
    refuse(client, Code::kOutOfResources, "rank 0's store is full");
    return;
  }
  if (is_new) start_gather(name, request, now_ns);
  Gather& gather = gathers_[name];
  if (const Status conflict = conflict_of(gather, who, request); !conflict.ok()) {
    fail_gather(name, conflict);
    sink_.send_reply(client, encode_failure(conflict));
    return;
  }
  bytes_ += request.value.size();
  start_wait(client, {.key = name,
                      .in_gather = true,
                      .index = request.rank,
                      .limit_ns = request.limit_ns != 0 ? request.limit_ns : request.timeout_ns,
                      .deadline_ns = deadline_after(now_ns, request.timeout_ns)});
  turned_away_.erase(request.group().rank(request.rank));
  gather.entries[request.rank] = {.client = client, .name = who, .value = std::move(request.value)};
  if (gather.entries.size() == static_cast<size_t>(gather.group.count)) complete(name, gather);
}

void StoreTable::complete(const std::string& name, const Gather& gather) {
  ByteWriter payload;
  if (gather.operation == StoreOperation::kBroadcast) {
    payload.write_raw(gather.entries.begin()->second.value);
  } else {
    for (const auto& [index, entry] : gather.entries) payload.write_bytes(entry.value);
  }
  const Frame frame = encode_success(payload.bytes());
  for (const auto& [index, entry] : gather.entries) {
    stop_wait(entry.client);
    sink_.on_exchanged(entry.client);
    sink_.send_reply(entry.client, frame);
  }
  end_gather(name,
             fmt::format("all ranks of '{}' have already joined; is another job using this port, "
                         "or a RANK duplicated?",
                         gather.scope));
}

void StoreTable::fail_gather(const std::string& name, const Status& why) {
  const Gather& gather = gathers_.at(name);
  const Frame frame = encode_failure(why);
  for (const auto& [index, entry] : gather.entries) {
    stop_wait(entry.client);
    sink_.send_reply(entry.client, frame);
  }
  end_gather(name, fmt::format("'{}' has failed before: {}", gather.scope, why.text()));
}

void StoreTable::end_gather(const std::string& name, std::string why) {
  std::string key = name;
  const auto found = gathers_.find(key);
  for (const auto& [index, entry] : found->second.entries) bytes_ -= entry.value.size();
  Ended ended{.scope = std::move(found->second.scope), .reason = std::move(why)};
  gathers_.erase(found);
  if (ended_order_.size() == limits_.ended) {
    const auto oldest = ended_.find(ended_order_.front());
    forget_gather_of(oldest->second.scope);
    ended_.erase(oldest);
    ended_order_.pop_front();
  }
  ended_order_.push_back(key);
  ended_[std::move(key)] = std::move(ended);
}

// Records that a gather of |scope| is no longer running or remembered.
void StoreTable::forget_gather_of(const std::string& scope) {
  const auto found = scopes_.find(scope);
  if (--found->second.gathers == 0) scopes_.erase(found);
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
  const auto entry = gather->second.entries.find(wait.index);
  bytes_ -= entry->second.value.size();
  gather->second.entries.erase(entry);
  if (!gather->second.entries.empty()) return;
  forget_gather_of(gather->second.scope);
  gathers_.erase(gather);
}

void StoreTable::time_out(ClientId client) {
  const Wait wait = waits_.at(client);
  if (!wait.in_gather) {
    stop_wait(client);
    refuse(client, Code::kTimedOut, fmt::format("no rank has stored '{}' in time", wait.key));
    return;
  }
  const Gather& gather = gathers_[wait.key];
  const std::vector<int> missing = missing_from(gather);
  Code code = Code::kBootstrapFailed;
  for (const int rank : missing) {
    const auto found = turned_away_.find(rank);
    if (found == turned_away_.end()) continue;
    const Code why = found->second.why.code();
    if (why == Code::kPermissionDenied || why == Code::kUnsupported) code = why;
  }
  fail_gather(
      wait.key,
      Status(code, fmt::format("{} did not join within {}; check that they started and reach "
                               "MASTER_ADDR:MASTER_PORT, or raise HETCOMM_BOOTSTRAP_TIMEOUT{}{}",
                               format_ranks(missing, gather.ranks), duration_text(wait.limit_ns),
                               turned_away_text(missing), hint_)));
}

// Returns the reason given to the first of |ranks| that was turned away, or an empty text if none
// was.
std::string StoreTable::turned_away_text(const std::vector<int>& ranks) const {
  for (const int rank : ranks) {
    const auto found = turned_away_.find(rank);
    if (found == turned_away_.end()) continue;
    return fmt::format("; {}, which says that it is rank {}, was turned away: {}",
                       found->second.who, rank, found->second.why.text());
  }
  return {};
}

void StoreTable::note_turned_away(int32_t rank, std::string who, Status why) {
  if (rank < 0 || rank >= kMaxStoreRanks) return;
  turned_away_[rank] = {std::move(who), std::move(why)};
}

std::vector<int> StoreTable::missing_from(const Gather& gather) {
  std::vector<int> missing;
  for (int index = 0; index < gather.group.count; ++index) {
    if (!gather.entries.contains(index)) missing.push_back(gather.group.rank(index));
  }
  return missing;
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
  for (auto& [name, gather] : gathers_) {
    if (now_ns < gather.report_ns) continue;
    const uint64_t waited = now_ns - gather.begun_ns;
    gather.report_ns = deadline_after(now_ns, waited);
    lines.push_back(fmt::format("still waiting for {} of '{}' after {}{}{}", missing_text(gather),
                                gather.scope, seconds(waited),
                                turned_away_text(missing_from(gather)), hint_));
  }
  return lines;
}

void StoreTable::close() {
  fail_all(Status(Code::kBootstrapFailed, "rank 0 has closed the job's store; see its log"));
}

void StoreTable::fail_all(const Status& why) {
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
