#include "src/core/peer/rails/bulks.h"

#include <new>

#include "src/base/baton_role.h"

namespace hetcomm {

// If the endpoint throws, it has not accepted |bulk|. The abilities are checked because the peer
// may have requested a put or get that this connection does not support.
Code Bulks::hand_over(OwnedBulk& bulk) {
  const EndpointAbilities& can = bulk.rail->abilities();
  try {
    if (bulk.is_get) return can.gets != nullptr ? can.gets->get(bulk) : Code::kUnsupported;
    return can.puts != nullptr ? can.puts->put(bulk) : Code::kUnsupported;
  } catch (const std::bad_alloc&) {
    return Code::kOutOfMemory;
  }
}

void Bulks::start(OwnedBulk& bulk) {
  const Code code = hand_over(bulk);
  if (code == Code::kOk) {
    bulk.rail->sending.start(bulk.local.length, engine_.coarse_now());
    bulk.started = true;
  } else if (code == Code::kWouldBlock || code == Code::kPeerLost) {
    wait(bulk);
  } else {
    // A retry would be refused, too.
    bulk.refused = code;
    refused_.push(bulk);
    turns_.update_due(pair_);
  }
}

void Bulks::submit_waiting() {
  for (size_t left = waiting_.size(); left > 0 && !waiting_.empty(); --left) {
    OwnedBulk& bulk = waiting_.pop();
    bulk.waiting = false;
    submit(bulk);
  }
}

void Bulks::ended(OwnedBulk& bulk, Code code) {
  if (bulk.started) bulk.rail->sending.finish(bulk.local.length, engine_.coarse_now());
  if (code == Code::kOk) bulk.rail->counters().bulk_bytes += bulk.local.length;
  bulk.started = false;
  bulk.rail = nullptr;
  bulk.owner->on_bulk(bulk, code);
}

void Bulks::report_refused() {
  while (!refused_.empty()) {
    OwnedBulk& bulk = refused_.pop();
    ended(bulk, std::exchange(bulk.refused, Code::kOk));
  }
}

bool Bulks::cancel(OwnedBulk& bulk) {
  bool breaks = false;
  const auto same = [&](const OwnedBulk& each) { return &each == &bulk; };
  if (bulk.refused != Code::kOk) {
    bulk.refused = Code::kOk;
    refused_.remove_if(same);
  } else if (bulk.waiting) {
    bulk.waiting = false;
    waiting_.remove_if(same);
  } else if (bulk.rail != nullptr) {
    const EndpointAbilities& can = bulk.rail->abilities();
    breaks = bulk.is_get ? can.gets->cancel(bulk) : can.puts->cancel(bulk);
    if (bulk.started) bulk.rail->sending.drop(bulk.local.length);
  }
  bulk.started = false;
  bulk.rail = nullptr;
  return breaks;
}

void Bulks::forget(const Rail& rail) {
  const auto on_it = [&](OwnedBulk& bulk) {
    if (bulk.rail != &rail) return false;
    bulk.waiting = false;
    bulk.refused = Code::kOk;
    bulk.rail = nullptr;
    return true;
  };
  waiting_.remove_if(on_it);
  refused_.remove_if(on_it);
}

}  // namespace hetcomm
