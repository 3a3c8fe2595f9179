#include "src/core/job/membership/introductions.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/core.h>

#include "src/core/job/membership/rank_profile.h"

namespace hetcomm {

bool Introductions::knows(int rank) {
  if (!peers_.knows(rank)) return take_profile(rank);
  if (!forgotten_by_.contains(rank)) {
    introducer_.remove_profile(rank);  // a second answer is not needed
    return true;
  }
  if (introducer_.find_profile(rank).empty()) return false;
  // The rank has answered, so it has this rank's profile.
  forgotten_by_.erase(rank);
  forget(rank);
  introducer_.remove_profile(rank);
  return true;
}

bool Introductions::take_profile(int rank) {
  const std::string bytes = introducer_.find_profile(rank);
  if (bytes.empty()) return false;
  RankProfile profile;
  Status status = decode_profile(std::as_bytes(std::span(bytes)), setup_.rank,
                                 peers_.class_of(setup_.rank).tls, &profile);
  if (status.ok() && profile.info.incarnation != credentials_.incarnation_of(rank)) {
    status = Status(Code::kBootstrapFailed, "it is that of another process");
  }
  if (!status.ok()) {
    log_.warn("the profile of rank {} is of no use: {}", rank, status.text());
    refused_[rank] = status;
    const auto asked = asked_ns_.find(rank);
    if (asked != asked_ns_.end()) asked->second = 0;  // makes it overdue
    introducer_.remove_profile(rank);
    return false;
  }
  introducer_.learn_addresses(rank, std::move(profile.control));
  peers_.set_offers(rank, std::move(profile.info.offers));
  refused_.erase(rank);
  forgotten_by_.erase(rank);
  forget(rank);
  introducer_.remove_profile(rank);
  return true;
}

void Introductions::ask(int rank) {
  refused_.erase(rank);
  const bool asks = asked_ns_.contains(rank) ||
                    std::find(waiting_.begin(), waiting_.end(), rank) != waiting_.end();
  if (!asks) waiting_.push_back(rank);
}

void Introductions::forgotten_by(int rank) {
  forgotten_by_.insert(rank);
  introducer_.remove_profile(rank);  // only a profile that arrives later is an answer
}

// An overdue request to |rank| still occupies the control plane, which tries to connect to |rank|.
// A new request to the same rank replaces it and does not count in addition.
bool Introductions::has_room_for(int rank) const {
  return asked_ns_.size() + overdue_ns_.size() - overdue_ns_.count(rank) < kMaxAsked;
}

bool Introductions::send_next(uint64_t now_ns) {
  const uint64_t attempt = attempt_ns();
  std::erase_if(overdue_ns_, [&](const auto& entry) { return now_ns >= entry.second + attempt; });
  bool sent = false;
  while (!waiting_.empty() && has_room_for(waiting_.front())) {
    const int rank = waiting_.front();
    asked_ns_[rank] = now_ns;
    overdue_ns_.erase(rank);
    waiting_.pop_front();
    introducer_.ask_profile(rank);
    sent = true;
  }
  return sent;
}

void Introductions::forget(int rank) {
  std::erase(waiting_, rank);
  asked_ns_.erase(rank);
  overdue_ns_.erase(rank);
}

std::vector<int> Introductions::take_overdue(uint64_t now_ns) {
  std::vector<int> overdue;
  for (const auto& [rank, asked_ns] : asked_ns_) {
    if (now_ns >= asked_ns + patience_ns()) overdue.push_back(rank);
  }
  for (const int rank : overdue) overdue_ns_.insert(asked_ns_.extract(rank));
  return overdue;
}

Status Introductions::why(int rank) const {
  const auto refused = refused_.find(rank);
  if (refused != refused_.end()) return refused->second.annotate("its profile");
  return Status(Code::kUnreachable,
                "it has not said how it is reached: no control connection to it could be made, or "
                "its process does not run");
}

uint64_t Introductions::next_timer_ns() const {
  if (!waiting_.empty() && has_room_for(waiting_.front())) return 0;
  uint64_t next = kForever;
  for (const auto& [rank, asked_ns] : asked_ns_) next = std::min(next, asked_ns + patience_ns());
  if (waiting_.empty()) return next;
  for (const auto& [rank, asked_ns] : overdue_ns_) next = std::min(next, asked_ns + attempt_ns());
  return next;
}

}  // namespace hetcomm
