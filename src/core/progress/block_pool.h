// BlockPool provides memory for objects that live as long as an operation. It keeps free blocks by
// power-of-two size, so that the data path stops allocating once it has warmed up.
//
//   PoolPtr<Piece> piece = make_pooled<Piece>(pool, arguments...);   // like std::make_unique
//
// Callers hold the baton.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "src/base/baton_role.h"

namespace hetcomm {

class BlockPool {
 public:
  BlockPool() = default;
  ~BlockPool() {
    for (Class& c : classes_) {
      while (c.first != nullptr) ::operator delete(std::exchange(c.first, c.first->next));
    }
  }
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Returns |size| bytes, aligned for any type that is not over-aligned, or null if out of memory.
  void* take(size_t size) noexcept HETCOMM_UNDER_BATON {
    const size_t index = class_of(size);
    if (index >= kClasses) return ::operator new(size, std::nothrow);
    Class& c = classes_[index];
    if (c.first == nullptr) return ::operator new(kSmallest << index, std::nothrow);
    --c.count;
    return std::exchange(c.first, c.first->next);
  }
  // Returns |block| to the pool. |size| is the size that was passed to take().
  void give(void* block, size_t size) noexcept HETCOMM_UNDER_BATON {
    if (block == nullptr) return;
    const size_t index = class_of(size);
    if (index >= kClasses || classes_[index].count >= most(index)) {
      ::operator delete(block);
      return;
    }
    Class& c = classes_[index];
    c.first = new (block) Free{c.first};
    ++c.count;
  }

 private:
  static constexpr size_t kSmallest = 64;
  static constexpr size_t kClasses = 15;          // for blocks of up to 1 MiB
  static constexpr size_t kKeptBytes = 4u << 20;  // the maximum kept for each size
  struct Free {
    Free* next;
  };
  struct Class {
    Free* first = nullptr;
    size_t count = 0;
  };
  static size_t class_of(size_t size) {
    return static_cast<size_t>(std::bit_width((size > 0 ? size - 1 : 0) / kSmallest));
  }
  static size_t most(size_t index) { return kKeptBytes / (kSmallest << index); }

  std::array<Class, kClasses> classes_ HETCOMM_GUARDED_BY_BATON;
};

// PoolBytes owns a block of bytes from a pool.
class PoolBytes {
 public:
  PoolBytes() = default;
  // Takes |size| bytes from |pool|. The object is empty if there is no memory.
  PoolBytes(BlockPool& pool, size_t size)
      : pool_(&pool), data_(static_cast<std::byte*>(pool.take(size))), size_(size) {}
  ~PoolBytes() { reset(); }
  PoolBytes(PoolBytes&& other) noexcept
      : pool_(other.pool_), data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  PoolBytes& operator=(PoolBytes&& other) noexcept HETCOMM_UNDER_BATON {
    reset();
    pool_ = other.pool_;
    data_ = std::exchange(other.data_, nullptr);
    size_ = other.size_;
    return *this;
  }

  explicit operator bool() const { return data_ != nullptr; }
  std::byte* get() const { return data_; }
  void reset() HETCOMM_UNDER_BATON {
    if (data_ != nullptr) pool_->give(std::exchange(data_, nullptr), size_);
  }
  // Hands the bytes over to |keeper| if an abandoned copy may still access them (see
  // AbandonedCopies::keep_if_touched()).
  template <typename Keeper>
  void leave_to(Keeper& keeper) HETCOMM_UNDER_BATON {
    if (data_ == nullptr || keeper.none()) return;
    std::unique_ptr<void, Unpooled> owner(data_);
    const bool is_kept = keeper.keep_if_touched({data_, data_ + size_}, owner);
    static_cast<void>(owner.release());
    if (is_kept) data_ = nullptr;
  }

 private:
  struct Unpooled {
    void operator()(void* block) const { ::operator delete(block); }
  };

  BlockPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

template <typename T>
struct PoolDelete {
  BlockPool* pool = nullptr;
  void operator()(T* object) const HETCOMM_UNDER_BATON {
    object->~T();
    pool->give(object, sizeof(T));
  }
};
template <typename T>
using PoolPtr = std::unique_ptr<T, PoolDelete<T>>;

template <typename T, typename... Arguments>
PoolPtr<T> make_pooled(BlockPool& pool, Arguments&&... arguments) HETCOMM_UNDER_BATON {
  static_assert(alignof(T) <= alignof(std::max_align_t));
  void* block = pool.take(sizeof(T));
  if (block == nullptr) throw std::bad_alloc();
  try {
    return PoolPtr<T>(new (block) T(std::forward<Arguments>(arguments)...), PoolDelete<T>{&pool});
  } catch (...) {
    pool.give(block, sizeof(T));
    throw;
  }
}

// Holds up to N pooled objects, in order. Adding an object allocates no memory.
template <typename T, size_t N>
class FewPooled {
 public:
  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  bool full() const { return count_ == N; }
  T& operator[](size_t index) const { return *objects_[index]; }
  T& back() const { return *objects_[count_ - 1]; }
  void push(PoolPtr<T> object) { objects_[count_++] = std::move(object); }
  PoolPtr<T> take(size_t index) {
    PoolPtr<T> taken = std::move(objects_[index]);
    for (; index + 1 < count_; ++index) objects_[index] = std::move(objects_[index + 1]);
    --count_;
    return taken;
  }
  PoolPtr<T> take(const T& object) {
    size_t index = 0;
    while (objects_[index].get() != &object) ++index;
    return take(index);
  }

 private:
  std::array<PoolPtr<T>, N> objects_;
  size_t count_ = 0;
};

}  // namespace hetcomm
