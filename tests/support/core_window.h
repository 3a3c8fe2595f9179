// Registered memory on each of two core ranks, accessible to the other rank.
#pragma once

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/core_job.h"

namespace hetcomm::test {

inline void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.text(); }

class Window {
 public:
  // Allocates |size| bytes. Both ranks must call it.
  Window(CoreMember& me, size_t size)
      : bytes_(size), memory_(me.context().devices(), 0, bytes_.data(), bytes_.size(), false) {
    const Status status =
        me.communicator().memories().register_memory(memory_, HETCOMM_ACCESS_ALL, true);
    if (!status.ok()) throw std::runtime_error(std::string(status.text()));
    std::vector<std::byte> mine = RegisteredMemories::export_memory(memory_).value();
    std::vector<std::byte> theirs(mine.size());
    Operation* receive =
        me.post(OperationKind::kReceive, 1 - me.rank(), 7, theirs.data(), theirs.size());
    Operation* send = me.post(OperationKind::kSend, 1 - me.rank(), 7, mine.data(), mine.size());
    expect_ok(me.finish(receive));
    expect_ok(me.finish(send));
    ExportedMemory exported;
    std::vector<RemoteKey> keys;
    expect_ok(me.communicator().memories().import_memory(theirs, &exported, &keys));
    remote_ = std::make_unique<RemoteMemory>(me.communicator(), exported, std::move(keys));
  }
  ~Window() { expect_ok(RegisteredMemories::unregister_memory(memory_, 20'000'000'000)); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Returns the other rank's memory.
  RemoteMemory& remote() { return *remote_; }
  // Returns this rank's memory.
  Memory& memory() { return memory_; }
  ConstByteSpan at(uint64_t offset, uint64_t length) const {
    return ConstByteSpan(bytes_).subspan(offset, length);
  }
  // Reads word |index|. Peers may change it concurrently by atomic operations.
  uint64_t word(size_t index) const {
    auto* const address = const_cast<std::byte*>(bytes_.data()) + 8 * index;
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(address)).load();
  }

 private:
  std::vector<std::byte> bytes_;
  Memory memory_;
  std::unique_ptr<RemoteMemory> remote_;
};

}  // namespace hetcomm::test
