// IdChains is a hash table of objects by ids that a peer has chosen. The chains are intrusive, so
// inserting an object after make_room() allocates no memory. The average cost of a call does not
// depend on the number of objects.
//
// An object has a member IdLink<T> named |id_link|, and can be in only one such table at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"

namespace hetcomm {

template <typename T>
struct IdLink {
  uint64_t id = 0;
  T* next = nullptr;
};

template <typename T>
class IdChains {
 public:
  IdChains() = default;
  IdChains(const IdChains&) = delete;
  IdChains& operator=(const IdChains&) = delete;

  size_t count() const HETCOMM_UNDER_BATON { return count_; }
  // Grows the table if necessary. Call this before each insert(). Throws std::bad_alloc only if the
  // first chains cannot be allocated.
  void make_room() HETCOMM_UNDER_BATON {
    if (count_ >= kMaxChainLength * chains_.size()) [[unlikely]]
      grow();
  }
  // Adds |object|. Several objects may have the same id.
  void insert(T& object, uint64_t id) HETCOMM_UNDER_BATON {
    object.id_link = {id, std::exchange(chain_of(id), &object)};
    ++count_;
  }
  // Removes |object|, which must be in the table.
  void erase(T& object) HETCOMM_UNDER_BATON {
    T** at = &chain_of(object.id_link.id);
    while (*at != &object) at = &(*at)->id_link.next;
    *at = object.id_link.next;
    --count_;
  }
  // Returns an object with |id|, or null if there is none.
  T* find(uint64_t id) const HETCOMM_UNDER_BATON {
    if (count_ == 0) return nullptr;
    T* object = chains_[index_of(id)];
    while (object != nullptr && object->id_link.id != id) object = object->id_link.next;
    return object;
  }

 private:
  static constexpr size_t kMaxChainLength = 2;
  static constexpr size_t kFirst = 16;

  size_t index_of(uint64_t id) const {
    const uint64_t mixed = (id ^ id >> 32) * 0x9e3779b97f4a7c15u;
    return static_cast<size_t>(mixed >> 32) & (chains_.size() - 1);
  }
  T*& chain_of(uint64_t id) { return chains_[index_of(id)]; }
  void grow() HETCOMM_UNDER_BATON {
    if (chains_.empty()) {
      chains_.resize(kFirst);
      return;
    }
    std::vector<T*> old;
    try {
      old.resize(4 * chains_.size());
    } catch (const std::bad_alloc&) {
      return;  // out of memory: the chains stay longer than intended
    }
    old.swap(chains_);
    for (T* object : old) {
      while (object != nullptr) {
        T* const next = object->id_link.next;
        object->id_link.next = std::exchange(chain_of(object->id_link.id), object);
        object = next;
      }
    }
  }

  std::vector<T*> chains_;  // the size is a power of two
  size_t count_ = 0;
};

}  // namespace hetcomm
