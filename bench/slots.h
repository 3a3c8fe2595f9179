// Slots are the buffers that a work sends from and receives into. They are in host memory or in
// device memory.
#pragma once

#include <cstdint>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "bench/loops/buffers.h"
#include "tools/common/session.h"

namespace bench {

// The parts of a buffer that one rank copies to and from the host, as fractions of its size.
struct CopyShares {
  double to_host = 0;
  double from_host = 0;
};

class Slots {
 public:
  // |session| must outlive this object. |device| is a device of its context.
  Slots(const tools::Session& session, int32_t device) : session_(session), device_(device) {}
  ~Slots() { free(); }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  // Allocates |slots| buffers of |bytes| for each direction. Those on the |exposed| side, if any,
  // are in memory that can be registered.
  void make(uint64_t bytes, int slots, const Exposed* exposed);
  // Allocates one slot of |bytes| for each direction. If they are on a device, also allocates a
  // mirror of both in host memory.
  void make_mirrored(uint64_t bytes);
  void free();

  bool on_host() const { return device_ == HETCOMM_DEVICE_HOST; }
  uint64_t bytes() const { return bytes_; }
  const hetcomm_buffer_t& send(int slot) const { return send_[static_cast<size_t>(slot)]; }
  const hetcomm_buffer_t& receive(int slot) const { return receive_[static_cast<size_t>(slot)]; }
  // Returns the memory of the exposed side, or null if there is none.
  hetcomm_memory_t* exposed() const { return exposed_; }
  uint64_t offset_of(int slot) const {
    return SlotMemory::stride(bytes_) * static_cast<uint64_t>(slot);
  }
  // Returns the slots in host memory: the buffers themselves, or their mirror.
  const HostBuffers& host() const { return host_; }

  void fill(int slot, uint64_t seed);
  void clear(int slot);
  int64_t wrong(int slot, uint64_t seed);
  // Copies both mirrored slots to the device. read_mirror() copies them back.
  void write_mirror();
  void read_mirror();

  // Returns the microseconds that this rank takes to copy |shares| of a buffer out of device memory
  // and into it: the mean over about |seconds|. Returns 0 for host memory. Exits the process if the
  // slots are on a device whose memory the CPU can access.
  double copy_us(double seconds, const CopyShares& shares);

 private:
  hetcomm_memory_t* allocate(uint64_t size);

  const tools::Session& session_;
  const int32_t device_;
  uint64_t bytes_ = 0;
  HostBuffers host_;                         // the slots on the host, or their mirror
  std::vector<hetcomm_memory_t*> memories_;  // device memory, and the exposed memory
  std::vector<hetcomm_buffer_t> send_;
  std::vector<hetcomm_buffer_t> receive_;
  std::vector<uint8_t> scratch_;
  hetcomm_memory_t* exposed_ = nullptr;  // one of memories_
};

}  // namespace bench
