#include "src/core/job/introductions.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "src/core/job/rank_profile.h"

namespace hetcomm {

bool Introductions::knows(int rank) {
  if (commons_.control == nullptr) return peers_.knows(rank);
  liveness::ProfileBook& book = commons_.control->profiles();
  if (peers_.knows(rank)) {
    book.remove(rank);  // it was asked for twice
    return true;
  }
  const std::string bytes = book.find(rank);
  if (bytes.empty()) return false;
  RankProfile profile;
  Status status = decode_profile(std::as_bytes(std::span(bytes)), commons_.rank,
                                 peers_.class_of(commons_.rank).tls, &profile);
  if (status.ok() && profile.info.incarnation != credentials_.incarnation_of(rank)) {
    status = Status(Code::kBootstrapFailed, "it is that of another process");
  }
  if (!status.ok()) {
    commons_.log.warn("the profile of rank {} is of no use: {}", rank, status.text());
    refused_[rank] = status;
    if (is_asking(rank)) asked_ns_[rank] = 0;  // it has no time left
    book.remove(rank);
    return false;
  }
  commons_.control->learn_addresses(rank, std::move(profile.control));
  peers_.set_offers(rank, std::move(profile.info.offers));
  asked_ns_.erase(rank);
  refused_.erase(rank);
  book.remove(rank);
  return true;
}

void Introductions::ask(int rank) {
  refused_.erase(rank);
  asked_ns_[rank] = commons_.engine.refresh_now();
  commons_.schedule.note_timer(asked_ns_[rank] + patience_ns());
  commons_.control->ask_profile(rank);
}

std::vector<int> Introductions::take_overdue(uint64_t now_ns) {
  std::vector<int> overdue;
  for (const auto& [rank, asked_ns] : asked_ns_) {
    if (now_ns >= asked_ns + patience_ns()) overdue.push_back(rank);
  }
  for (const int rank : overdue) asked_ns_.erase(rank);
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
  uint64_t next = kForever;
  for (const auto& [rank, asked_ns] : asked_ns_) next = std::min(next, asked_ns + patience_ns());
  return next;
}

}  // namespace hetcomm
