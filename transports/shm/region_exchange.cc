#include "transports/shm/region_exchange.h"

namespace hetcomm::shm {

void RegionExchange::map(const RemoteKey& key, uint64_t length) {
  if (socket_failed_) return;
  to_ask_.emplace_back(PublishedRegions::id_of(key), length);
  ask();
}

void RegionExchange::ask() {
  while (!to_ask_.empty() && wanted_.size() < kMaxWanted) {
    const auto [id, length] = to_ask_.front();
    to_ask_.pop_front();
    wanted_.emplace(id, length);
    send({ParcelKind::kWant, 0, id, 0, 0});
  }
}

void RegionExchange::send(const Parcel& parcel) {
  if (!port_.send(parcel).ok()) socket_failed_ = true;
}

void RegionExchange::flush() {
  if (!port_.flush().ok()) socket_failed_ = true;
}

Status RegionExchange::receive(EndpointHandler& handler) {
  for (int i = 0; i < kMaxParcels && !socket_failed_; ++i) {
    Parcel parcel{};
    UniqueFd file;
    Status status = port_.receive(!wanted_.empty(), &parcel, &file);
    if (status.code() == Code::kPending) return {};
    if (!status.ok()) return status;
    // Usually no other parcel follows a kRing. If one does, the poller reports the socket again.
    if (parcel.kind == ParcelKind::kRing) return {};
    HETCOMM_RETURN_IF_ERROR(take(parcel, file, handler));
  }
  return {};
}

Status RegionExchange::take(const Parcel& parcel, const UniqueFd& file, EndpointHandler& handler) {
  const uint64_t id = parcel.region;
  const RemoteKey key = PublishedRegions::key_of(id);
  switch (parcel.kind) {
    case ParcelKind::kWant:
      return answer_want(id);
    case ParcelKind::kHere: {
      const auto wanted = wanted_.find(id);
      if (wanted == wanted_.end() || !file.valid()) break;
      Result<Mapping> mapping = Mapping::create(file, parcel, wanted->second);
      wanted_.erase(wanted);
      ask();
      if (!mapping.ok()) {
        send({ParcelKind::kGone, 0, id, 0, 0});
        handler.on_mapped(key, mapping.status());
        return {};
      }
      auto shared = std::make_shared<const Mapping>(std::move(mapping).value());
      const MappedRegion mapped{shared->address(), parcel.length, shared};
      mappings_[id] = std::move(shared);
      handler.on_mapped(key, mapped);
      return {};
    }
    case ParcelKind::kNone:
      if (wanted_.erase(id) == 0) break;
      ask();
      handler.on_mapped(key,
                        Status(Code::kUnsupported, "shm: the owner does not share the memory"));
      return {};
    case ParcelKind::kLetGo:
      // If this side could not map the region, it has already sent kGone to the owner.
      if (!mappings_.contains(id)) return {};
      handler.on_unmap(key);
      mappings_.erase(id);
      send({ParcelKind::kGone, 0, id, 0, 0});
      return {};
    case ParcelKind::kGone:
      shared_.erase(id);
      return {};
    case ParcelKind::kRing:
      return {};
  }
  return Status(Code::kInvalidArgument, "shm: peer sent an invalid message about a region");
}

Status RegionExchange::answer_want(uint64_t id) {
  if (port_.answers_waiting() >= kMaxWanted) {
    return Status(Code::kInvalidArgument, "shm: peer asks for more regions at once than it may");
  }
  Refusal refusal{};
  const Region* const region = own_.find(id, peer_, &refusal);
  if (region == nullptr) note_refusal(refusal);
  if (region != nullptr && !shared_.contains(id)) {
    const Parcel here{ParcelKind::kHere, 0, id, region->length, region->file_offset};
    if (const Status sent = port_.send(here, region->file); sent.ok()) {
      shared_.emplace(id, false);
      return {};
    }
  }
  send({ParcelKind::kNone, 0, id, 0, 0});
  return {};
}

// Logs each reason except kWithdrawn once per connection, so that a peer that keeps requesting does
// not flood the log.
void RegionExchange::note_refusal(Refusal refusal) {
  if (refusal == Refusal::kWithdrawn ||
      std::exchange(refusals_noted_[static_cast<size_t>(refusal)], true)) {
    return;
  }
  log_.warn("shm: rank {} (process {} of user {}) is refused memory: {}", peer_, connection_.pid,
            connection_.user,
            refusal == Refusal::kForeign
                ? "it is registered on a communicator that this rank does not belong to"
                : "the key that it sent names no memory that can be mapped");
}

bool RegionExchange::ask_to_let_go(uint64_t id) {
  const auto found = shared_.find(id);
  if (found == shared_.end()) return false;
  if (!std::exchange(found->second, true)) send({ParcelKind::kLetGo, 0, id, 0, 0});
  return true;
}

void RegionExchange::unmap_all(EndpointHandler& handler) {
  for (const auto& [id, mapping] : mappings_) handler.on_unmap(PublishedRegions::key_of(id));
  mappings_.clear();
}

}  // namespace hetcomm::shm
