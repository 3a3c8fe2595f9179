// A Graveyard defers the destruction of objects that are no longer needed but whose functions may
// still be on the call stack. It frees such retired objects later, in the order in which they were
// added. The list is intrusive, so adding an object never fails.
//
// All calls are made under the baton.
#pragma once

#include <memory>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/progress/block_pool.h"

namespace hetcomm {

// The base class of objects that can be added to a Graveyard.
class Mortal {
 protected:
  Mortal() = default;
  ~Mortal() = default;
  Mortal(const Mortal&) = delete;
  Mortal& operator=(const Mortal&) = delete;

 private:
  friend class Graveyard;
  Mortal* next_dead_ = nullptr;
  void (*destroy_)(Mortal*, BlockPool&) = nullptr;
};

class Graveyard {
 public:
  Graveyard() = default;
  Graveyard(const Graveyard&) = delete;
  Graveyard& operator=(const Graveyard&) = delete;

  bool empty() const HETCOMM_UNDER_BATON { return first_ == nullptr; }

  template <typename T>
  void add(std::unique_ptr<T> object) HETCOMM_UNDER_BATON {
    append(object.release(), [](Mortal* dead, BlockPool&) { delete static_cast<T*>(dead); });
  }
  template <typename T>
  void add(PoolPtr<T> object) HETCOMM_UNDER_BATON {
    append(object.release(), [](Mortal* dead, BlockPool& pool) HETCOMM_UNDER_BATON {
      PoolDelete<T>{&pool}(static_cast<T*>(dead));
    });
  }

  // Frees all objects added so far. Objects added during the call are freed by the next call.
  void bury(BlockPool& pool) HETCOMM_UNDER_BATON {
    Mortal* dead = std::exchange(first_, nullptr);
    end_ = &first_;
    while (dead != nullptr) {
      Mortal* const next = dead->next_dead_;
      dead->destroy_(dead, pool);
      dead = next;
    }
  }

 private:
  void append(Mortal* dead, void (*destroy)(Mortal*, BlockPool&)) HETCOMM_UNDER_BATON {
    dead->next_dead_ = nullptr;
    dead->destroy_ = destroy;
    *end_ = dead;
    end_ = &dead->next_dead_;
  }

  Mortal* first_ HETCOMM_GUARDED_BY_BATON = nullptr;
  Mortal** end_ HETCOMM_GUARDED_BY_BATON = &first_;
};

}  // namespace hetcomm
