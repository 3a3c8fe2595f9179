// SlotTable holds objects that messages refer to by id. An id combines a slot number and a
// generation. find() returns null for an id that was never issued or whose object was removed. The
// top bit of an id is never set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/baton_role.h"

namespace hetcomm {

template <typename T>
class SlotTable {
 public:
  uint64_t insert(T* object) HETCOMM_UNDER_BATON {
    uint32_t index;
    if (free_.empty()) {
      index = static_cast<uint32_t>(slots_.size());
      if (slots_.size() == slots_.capacity()) grow();
      slots_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    Slot& slot = slots_[index];
    slot.object = object;
    slot.used = true;
    return static_cast<uint64_t>(slot.generation) << 32 | index;
  }

  // Returns the object with |id|, or null if there is none.
  T* find(uint64_t id) const HETCOMM_UNDER_BATON {
    const auto index = static_cast<uint32_t>(id);
    if (index >= slots_.size() || slots_[index].generation != id >> 32) return nullptr;
    return slots_[index].object;
  }

  // Frees |id|. Returns false if it is not in use.
  bool erase(uint64_t id) HETCOMM_UNDER_BATON {
    const auto index = static_cast<uint32_t>(id);
    if (index >= slots_.size() || slots_[index].generation != id >> 32 || !slots_[index].used) {
      return false;
    }
    slots_[index].object = nullptr;
    slots_[index].used = false;
    slots_[index].generation = slots_[index].generation % kLastGeneration + 1;
    free_.push_back(index);
    return true;
  }
  // Removes the object with |id|. Keeps |id| in use until erase(), since the peer has not yet been
  // notified that the object is gone.
  void detach(uint64_t id) HETCOMM_UNDER_BATON {
    if (find(id) != nullptr) slots_[static_cast<uint32_t>(id)].object = nullptr;
  }

  // Calls |use| for every object. |use| may erase the object that it receives.
  template <typename Use>
  void for_each(Use&& use) HETCOMM_UNDER_BATON {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].object != nullptr) use(*slots_[i].object);
    }
  }
  bool empty() const HETCOMM_UNDER_BATON { return free_.size() == slots_.size(); }

 private:
  static constexpr uint32_t kLastGeneration = 0x7fffffff;
  struct Slot {
    T* object = nullptr;
    uint32_t generation = 1;
    bool used = false;
  };
  void grow() HETCOMM_UNDER_BATON {
    constexpr size_t kFirst = 16;
    const size_t size = std::max(kFirst, 2 * slots_.size());
    free_.reserve(size);  // so that erase() allocates nothing
    slots_.reserve(size);
  }

  std::vector<Slot> slots_ HETCOMM_GUARDED_BY_BATON;
  std::vector<uint32_t> free_ HETCOMM_GUARDED_BY_BATON;
};

}  // namespace hetcomm
