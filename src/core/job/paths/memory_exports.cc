#include "src/core/job/paths/memory_exports.h"

#include <algorithm>
#include <new>

#include <fmt/core.h>

#include "src/base/baton_role.h"

namespace hetcomm {
namespace {

Result<RemoteKey> publish_over(RegionPublisher& publisher,
                               const Region& region) HETCOMM_UNDER_BATON {
  try {
    return publisher.publish(region);
  } catch (const std::bad_alloc&) {
    return Code::kOutOfMemory;
  }
}

}  // namespace

void MemoryExports::publish(Registration& registration) {
  registration.id = registrations_.insert(&registration);
  publish_missing(registration);
}

void MemoryExports::publish_again(Registration& registration) {
  if (registration.is_incomplete && !registration.closing) publish_missing(registration);
}

void MemoryExports::publish_missing(Registration& registration) {
  registration.is_incomplete = true;  // in case memory runs out during publishing
  bool is_incomplete = false;
  Memory& memory = registration.memory();
  const bool on_host = memory.host_accessible();
  int file = -1;
  uint64_t file_offset = 0;
  const DeviceTable& table = *memory.device().table;
  if (table.shared_file != nullptr && memory.owned() &&
      table.shared_file(memory.device().instance, memory.address(), &file, &file_offset) !=
          HETCOMM_OK) {
    file = -1;
  }
  const uint64_t near = data_.near.of_device(memory.device_index());
  for (const auto& each : transports_.all()) {
    const Capabilities& capabilities = each->capabilities();
    if (!RailMasks::has(near, each->index)) continue;
    if (!capabilities.regions && !(capabilities.map && file >= 0)) continue;
    const bool is_published =
        std::any_of(registration.keys.begin(), registration.keys.end(),
                    [&](const auto& numbered) { return numbered.first == each->index; });
    if (is_published) continue;
    if (!data_.device_access.reaches(memory, each->index)) {
      is_incomplete = true;
      continue;
    }
    const uint32_t rights = registration.rights();
    Region region{
        .address = on_host ? static_cast<std::byte*>(memory.address()) : memory.known_placeholder(),
        .length = memory.size(),
        .writable = (rights & HETCOMM_ACCESS_PUT) != 0,
        .readable = (rights & HETCOMM_ACCESS_GET) != 0,
        .atomic = (rights & HETCOMM_ACCESS_ATOMIC) != 0,
        .file = file,
        .file_offset = file_offset,
        .members = {}};
    if (capabilities.map) {
      region.members.resize(static_cast<size_t>(peers_.size()));
      for (const int rank : registration.communicator().ranks()) {
        region.members[static_cast<size_t>(rank)] = true;
      }
    }
    // Adding the entry may run out of memory. It therefore comes before publishing, so that every
    // published region can be withdrawn.
    registration.keys.emplace_back(static_cast<uint8_t>(each->index), RemoteKey{});
    Result<RemoteKey> key = publish_over(*each->abilities.regions, region);
    if (key.ok()) {
      registration.keys.back().second = key.value();
    } else {
      registration.keys.pop_back();
      is_incomplete = true;
      log_.info("{} does not reach a registered memory of {} bytes directly: {}", each->name,
                memory.size(), key.status().text());
    }
  }
  registration.is_incomplete = is_incomplete;
}

bool MemoryExports::withdraw(Registration& registration) {
  const auto& all = transports_.all();
  std::erase_if(registration.keys, [&](const auto& numbered) HETCOMM_UNDER_BATON {
    return all[numbered.first]->abilities.regions->withdraw(numbered.second);
  });
  return registration.keys.empty();
}

Result<RemoteKey> MemoryExports::publish_block(size_t transport, int reader, Region region) {
  const JobTransport& over = *transports_.all()[transport];
  if (!over.capabilities().map) return Code::kUnsupported;
  region.members.resize(static_cast<size_t>(peers_.size()));
  region.members[static_cast<size_t>(reader)] = true;
  return publish_over(*over.abilities.regions, region);
}

bool MemoryExports::withdraw_block(size_t transport, const RemoteKey& key) {
  return transports_.all()[transport]->abilities.regions->withdraw(key);
}

ExportedMemory MemoryExports::describe(const Registration& registration) const {
  return {.job = identity_,
          .rank = rank_,
          .id = registration.id,
          .length = registration.memory().size(),
          .rights = registration.rights(),
          .host_accessible = registration.memory().host_accessible(),
          .needs_flush = registration.memory().needs_flush(),
          .keys = registration.keys};
}

Status MemoryExports::find_keys(const ExportedMemory& exported,
                                std::vector<RemoteKey>* keys) const {
  if (exported.job != identity_) {
    return Status(Code::kPermissionDenied,
                  "the memory belongs to another job or epoch, or to a communicator that is gone");
  }
  if (exported.rank < 0 || exported.rank >= peers_.size()) {
    return Status(Code::kOutOfRange, fmt::format("the job has no rank {}", exported.rank));
  }
  keys->clear();
  for (const auto& [transport, key] : exported.keys) {
    if (transport >= kMaxOffers) continue;
    if (keys->size() <= transport) keys->resize(transport + size_t{1});
    (*keys)[transport] = key;
  }
  return {};
}

}  // namespace hetcomm
