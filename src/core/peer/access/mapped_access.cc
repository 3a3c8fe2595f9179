#include "src/core/peer/access/mapped_access.h"

#include <algorithm>
#include <iterator>
#include <new>

#include "src/base/baton_role.h"
#include "src/core/memory/access_state.h"
#include "src/core/peer/wire/atomics.h"

namespace hetcomm {
namespace {

void copy_range(const Operation& operation, uint64_t from, uint64_t length) HETCOMM_UNDER_BATON {
  std::byte* at = access_of(operation).remote->mapped + operation.target.offset + from;
  const bool put = operation.kind == OperationKind::kPut;
  for_each_piece(operation.extents(), from, length, [&](std::byte* piece, size_t size) {
    put ? copy_bytes(at, piece, size) : copy_bytes(piece, at, size);
    at += size;
  });
}

}  // namespace

void MappedAccess::add(RemoteMemory& remote) {
  ++remote_count_;
  try {
    for (size_t i = 0; i < remote.key_count(); ++i) {
      if (remote.key(i) != RemoteKey{}) remotes_.emplace(remote.key(i), &remote);
    }
  } catch (const std::bad_alloc&) {
    remove(remote);
    throw;
  }
}

void MappedAccess::remove(RemoteMemory& remote) {
  --remote_count_;
  for (size_t i = 0; i < remote.key_count(); ++i) {
    auto [each, end] = remotes_.equal_range(remote.key(i));
    while (each != end) each = each->second == &remote ? remotes_.erase(each) : std::next(each);
    forget_if_gone(remote.key(i));
  }
}

template <typename Use>
void MappedAccess::for_each_remote(const Rail& rail, const RemoteKey& key, Use&& use) {
  auto [each, end] = remotes_.equal_range(key);
  for (; each != end; ++each) {
    if (each->second->key(rail.ends.peer) == key) use(*each->second);
  }
}

// Removes the entry of a region that is gone, unless a remote memory still names the region. While
// the entry exists, the region is not requested again.
void MappedAccess::forget_if_gone(const RemoteKey& key) {
  const auto known = regions_.find(key);
  if (known != regions_.end() && known->second.is_gone && !remotes_.contains(key)) {
    regions_.erase(known);
  }
}

// Returns whether |remote| is mapped. The first call requests the mapping. Until it exists,
// operations are sent by message.
bool MappedAccess::ask_for(RemoteMemory& remote, Rail& rail) {
  const RemoteKey& key = remote.key(rail.ends.peer);
  if (!rail.capabilities().map || key == RemoteKey{}) return false;
  const auto [found, is_new] = regions_.try_emplace(key);
  if (is_new) {
    rail.abilities().mapper->map(key, remote.length());
    return false;
  }
  // The exported bytes can contain a wrong length, so the mapping is used only if its length
  // agrees.
  const MappedRegion& region = found->second.mapped;
  if (region.length == remote.length()) remote.mapped = region.address;
  remote.counters = &rail.counters();
  return remote.mapped != nullptr;
}

void MappedAccess::mapped(Rail& rail, const RemoteKey& key, const Result<MappedRegion>& mapped) {
  if (!mapped.ok()) {
    log_.info("memory of rank {} is not mapped: {}", association_.rank(), mapped.status().text());
    return;
  }
  const auto known = regions_.find(key);
  if (known == regions_.end()) return;
  known->second.mapped = mapped.value();
  for_each_remote(rail, key, [&](RemoteMemory& remote) HETCOMM_UNDER_BATON {
    static_cast<void>(is_mapped(remote, rail));
  });
}

void MappedAccess::unmap(const Rail& rail, const RemoteKey& key) {
  for_each_remote(rail, key,
                  [](RemoteMemory& remote) HETCOMM_UNDER_BATON { remote.mapped = nullptr; });
  // The region is not requested again, since the owner is about to remove it.
  if (const auto known = regions_.find(key); known != regions_.end()) {
    known->second = {.mapped = {}, .is_gone = true};
    forget_if_gone(key);
  }
  for (size_t i = 0; i < copies_.size();) {
    Operation& operation = *copies_[i].operation;
    if (access_of(operation).remote->key(rail.ends.peer) != key) {
      ++i;
      continue;
    }
    copies_.erase(copies_.begin() + static_cast<ptrdiff_t>(i));
    user_.go_by_message(operation, 0);
  }
}

// Returns true if |operation| has completed or is being copied. Returns false if the rest of it
// must be sent by message.
bool MappedAccess::start_mapped(Operation& operation, Rail& rail) {
  if (is_atomic(operation)) {
    std::byte* at = access_of(operation).remote->mapped + operation.target.offset;
    if (!is_aligned_word(at)) return false;
    const uint64_t before = do_atomic(at, atomic_body_of(operation));
    if (access_of(operation).result != nullptr) *access_of(operation).result = before;
  } else if (operation.length > kMaxCopiedAtOnce) {
    count_access(operation, rail.counters());
    ++rail.counters().direct;
    operation.phase = OperationPhase::kDirect;
    copies_.push_back({&operation, 0});
    association_.copies_due();
    return true;
  } else {
    copy_range(operation, 0, operation.length);
  }
  count_access(operation, rail.counters());
  ++rail.counters().direct;
  if (access_of(operation).notify) {
    access_of(operation).placed = true;
    return false;
  }
  completer_.complete_access(operation, Code::kOk);
  return true;
}

bool MappedAccess::copy_some() {
  if (copies_.empty()) return false;
  Copy& copy = copies_.front();
  Operation& operation = *copy.operation;
  const uint64_t length = std::min(kMaxCopiedAtOnce, operation.length - copy.done);
  copy_range(operation, copy.done, length);
  copy.done += length;
  if (copy.done < operation.length) return true;
  copies_.pop_front();
  user_.finish_direct(operation, Code::kOk);
  return !copies_.empty();
}

bool MappedAccess::stop(const Operation& operation) {
  return std::erase_if(copies_, [&](const Copy& each) { return each.operation == &operation; }) > 0;
}

void MappedAccess::rail_failed(const Rail& rail) {
  if (!rail.capabilities().map) return;
  for (const auto& [key, remote] : remotes_) remote->mapped = nullptr;
  regions_.clear();
  interrupted_.reserve(interrupted_.size() +
                       copies_.size());  // throws before any operation is lost
  for (const Copy& copy : copies_) interrupted_.push_back(copy.operation);
  copies_.clear();
}

void MappedAccess::enqueue_interrupted() {
  for (Operation* operation : interrupted_) {
    access_of(*operation).direct_failed = true;
    association_.enqueue(*operation);
  }
  interrupted_.clear();
}

}  // namespace hetcomm
