#include "transports/shm/exposure.h"

#include <atomic>

#include "src/base/free_index.h"

namespace hetcomm::shm {
namespace {

uint64_t make_token(uint32_t index, uint32_t generation) {
  return static_cast<uint64_t>(generation) << 32 | index;
}
uint32_t index_of(uint64_t token) { return static_cast<uint32_t>(token); }
uint32_t generation_of(uint64_t token) { return static_cast<uint32_t>(token >> 32); }

void next_generation(uint32_t& generation) {
  if (++generation == 0) generation = 1;
}

}  // namespace

RemoteKey SourceKey::encode() const {
  return {{make_token(index, generation), address, extents << 48 | length}};
}

bool SourceKey::decode(const RemoteKey& key, SourceKey& out) {
  out = {index_of(key.words[0]), generation_of(key.words[0]), key.words[1], key.words[2] >> 48,
         key.words[2] & kMaxSourceBytes};
  return (key.words[2] & kPutKey) == 0 && out.index < kSourceCount && out.generation != 0;
}

RemoteKey TargetTable::add(Extents extents, uint64_t cookie) {
  const uint32_t index = next_free_index(targets_, free_);
  Target& target = targets_[index];
  target.extents.assign(extents.begin(), extents.end());
  free_.pop_back();  // takes the slot only now; nothing below can fail
  target.cursor = {};
  target.total = total_bytes(extents);
  target.cookie = cookie;
  target.received = 0;
  next_generation(target.generation);
  target.live = true;
  return {{make_token(index, target.generation), target.total, kPutKey}};
}

Target* TargetTable::find(uint64_t token) {
  const uint32_t index = index_of(token);
  if (index >= targets_.size()) return nullptr;
  Target& target = targets_[index];
  return target.live && target.generation == generation_of(token) ? &target : nullptr;
}

void TargetTable::remove(const RemoteKey& key) {
  Target* const target = find(key.words[0]);
  if (target == nullptr) return;
  target->live = false;
  free_.push_back(index_of(key.words[0]));
}

void TargetTable::clear() {
  targets_.clear();
  free_.clear();
}

Result<RemoteKey> SourceTable::add(Extents extents) {
  const uint64_t total = total_bytes(extents);
  if (total > kMaxSourceBytes || extents.size() > kMaxSourceExtents) {
    return Status(Code::kInvalidArgument, "shm: too much, or too many pieces, for one exposure");
  }
  if (free_.empty() && sources_.size() == kSourceCount) return Code::kOutOfResources;
  const uint32_t index = next_free_index(sources_, free_);
  Source& source = sources_[index];
  source.extents.assign(extents.begin(), extents.end());
  free_.pop_back();  // takes the slot only now; nothing below can fail
  next_generation(source.generation);
  source.live = true;
  words_[index].store(source.generation, std::memory_order_release);
  const bool single = extents.size() == 1;
  const void* const address =
      single ? extents[0].iov_base : static_cast<const void*>(source.extents.data());
  return SourceKey{index, source.generation, reinterpret_cast<uint64_t>(address),
                   single ? 0 : extents.size(), total}
      .encode();
}

void SourceTable::remove(const RemoteKey& key) {
  SourceKey wanted{};
  if (!SourceKey::decode(key, wanted) || wanted.index >= sources_.size()) return;
  Source& source = sources_[wanted.index];
  if (!source.live || source.generation != wanted.generation) return;
  words_[wanted.index].store(0, std::memory_order_relaxed);
  // A reader must see the change of the word before any later writes by the owner to the memory.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  source.live = false;
  free_.push_back(wanted.index);
}

void SourceTable::clear() {
  for (uint32_t index = 0; index < sources_.size(); ++index) {
    words_[index].store(0, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  sources_.clear();
  free_.clear();
}

}  // namespace hetcomm::shm
