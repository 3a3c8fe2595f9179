#include "bench/slots.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "bench/loops/samples.h"

namespace bench {

hetcomm_memory_t* Slots::allocate(uint64_t size) {
  hetcomm_memory_t* memory = nullptr;
  tools::require(hetcomm_memory_allocate(session_.context(), device_, size, &memory),
                 "allocating device memory");
  memories_.push_back(memory);
  return memory;
}

void Slots::free() {
  exposed_ = nullptr;
  host_.give_back();
  for (hetcomm_memory_t* memory : memories_) {
    tools::require(hetcomm_memory_destroy(memory), "freeing memory");
  }
  memories_.clear();
}

void Slots::make_mirrored(uint64_t bytes) {
  make(bytes, 1, nullptr);
  if (!on_host()) host_.prepare(bytes, 1);
}

void Slots::make(uint64_t bytes, int slots, const Exposed* exposed) {
  bytes_ = bytes;
  send_.clear();
  receive_.clear();
  free();
  const uint64_t size = SlotMemory::size(bytes, slots);
  if (on_host()) {
    if (exposed == nullptr) {
      host_.prepare(bytes, slots);
    } else {
      exposed_ = allocate(size);
      void* address = nullptr;
      tools::require(hetcomm_memory_address(exposed_, &address), "asking for an address");
      host_.prepare(bytes, slots, *exposed, address);
    }
    for (int slot = 0; slot < slots; ++slot) {
      send_.push_back(hetcomm_buffer_host(host_.send_slot(slot), bytes));
      receive_.push_back(hetcomm_buffer_host(host_.receive_slot(slot), bytes));
    }
  } else {
    for (std::vector<hetcomm_buffer_t>* buffers : {&send_, &receive_}) {
      hetcomm_memory_t* memory = allocate(size);
      for (int slot = 0; slot < slots; ++slot) {
        const uint64_t offset = SlotMemory::stride(bytes) * static_cast<uint64_t>(slot);
        buffers->push_back(hetcomm_buffer_memory(memory, offset, bytes));
      }
    }
    if (exposed != nullptr) exposed_ = memories_[*exposed == Exposed::kSend ? 0 : 1];
    scratch_.resize(static_cast<size_t>(bytes));
  }
}

void Slots::fill(int slot, uint64_t seed) {
  if (on_host()) return host_.fill(slot, seed);
  const hetcomm_buffer_t& buffer = send_[static_cast<size_t>(slot)];
  fill_pattern(scratch_.data(), bytes_, seed);
  tools::require(hetcomm_memory_write(buffer.memory, buffer.offset, scratch_.data(), bytes_),
                 "filling memory");
}

void Slots::clear(int slot) {
  if (on_host()) return host_.clear(slot);
  const hetcomm_buffer_t& buffer = receive_[static_cast<size_t>(slot)];
  std::fill(scratch_.begin(), scratch_.end(), uint8_t{0});
  tools::require(hetcomm_memory_write(buffer.memory, buffer.offset, scratch_.data(), bytes_),
                 "clearing memory");
}

int64_t Slots::wrong(int slot, uint64_t seed) {
  if (on_host()) return host_.wrong(slot, seed);
  const hetcomm_buffer_t& buffer = receive_[static_cast<size_t>(slot)];
  tools::require(hetcomm_memory_read(buffer.memory, buffer.offset, scratch_.data(), bytes_),
                 "reading memory");
  return count_wrong(scratch_.data(), bytes_, seed);
}

double Slots::copy_us(double seconds, const CopyShares& shares) {
  if (on_host()) return 0;
  hetcomm_device_info_t info{.struct_size = sizeof(info)};
  tools::require(hetcomm_device_info(session_.context(), device_, &info), "asking for a device");
  if (info.host_accessible != 0) {
    tools::fail(
        fmt::format("the CPU can touch memory of {}, so nothing is staged: use --memory sim-handle",
                    info.kind));
  }
  const hetcomm_buffer_t& out = send_[0];
  const hetcomm_buffer_t& in = receive_[0];
  const auto part = [this](double share) {
    return static_cast<uint64_t>(static_cast<double>(bytes_) * share);
  };
  const uint64_t to_host = part(shares.to_host);
  const uint64_t from_host = part(shares.from_host);
  scratch_.resize(std::max<size_t>(scratch_.size(), bytes_));
  const int64_t started = now_ns();
  int64_t ended = started;
  int64_t copies = 0;
  for (; static_cast<double>(ended - started) < seconds * 1e9; ended = now_ns(), ++copies) {
    if (to_host > 0) {
      tools::require(hetcomm_memory_read(out.memory, out.offset, scratch_.data(), to_host),
                     "copying");
    }
    if (from_host > 0) {
      tools::require(hetcomm_memory_write(in.memory, in.offset, scratch_.data(), from_host),
                     "copying");
    }
  }
  return static_cast<double>(ended - started) * 1e-3 / static_cast<double>(copies);
}

void Slots::write_mirror() {
  if (on_host() || bytes_ == 0) return;
  for (const auto& [buffer, slot] :
       {std::pair(send_[0], host_.send_slot(0)), std::pair(receive_[0], host_.receive_slot(0))}) {
    tools::require(hetcomm_memory_write(buffer.memory, buffer.offset, slot, bytes_),
                   "filling memory");
  }
}

void Slots::read_mirror() {
  if (on_host() || bytes_ == 0) return;
  for (const auto& [buffer, slot] :
       {std::pair(send_[0], host_.send_slot(0)), std::pair(receive_[0], host_.receive_slot(0))}) {
    tools::require(hetcomm_memory_read(buffer.memory, buffer.offset, slot, bytes_),
                   "reading memory");
  }
}

}  // namespace bench
