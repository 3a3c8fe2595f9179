#include "bench/hetcomm_backend.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace bench {
namespace {

int32_t find_device(hetcomm_context_t* context, const std::string& kind) {
  if (kind == "host") return HETCOMM_DEVICE_HOST;
  int32_t count = 0;
  require(hetcomm_device_count(context, &count), "counting the devices");
  for (int32_t index = 0; index < count; ++index) {
    hetcomm_device_info_t info{};
    require(hetcomm_device_get_info(context, index, &info), "asking for a device");
    if (kind == info.kind) return index;
  }
  fail(fmt::format("no device of kind '{}' here", kind));
}

// Slots start on pages of their own, as in host memory.
uint64_t stride_of(uint64_t bytes) {
  return std::max<uint64_t>((bytes + 4095) / 4096 * 4096, 4096);
}

}  // namespace

HetcommBackend::HetcommBackend(const Session& session, hetcomm_communicator_t* communicator,
                               const Work& work)
    : session_(session), communicator_(communicator) {
  device_ =
      find_device(session.context(), session.rank() == 0 ? work.first_memory : work.second_memory);
}

HetcommBackend::~HetcommBackend() { free_memory(); }

void HetcommBackend::free_memory() {
  for (hetcomm_memory_t* memory : memories_) require(hetcomm_memory_free(memory), "freeing memory");
  memories_.clear();
}

void HetcommBackend::prepare(uint64_t bytes, int slots) {
  bytes_ = bytes;
  send_.clear();
  receive_.clear();
  free_memory();
  requests_.reserve(static_cast<size_t>(slots) * 2);
  if (device_ == HETCOMM_DEVICE_HOST) {
    host_.prepare(bytes, slots);
    for (int slot = 0; slot < slots; ++slot) {
      send_.push_back(hetcomm_buffer_host(host_.send_slot(slot), bytes));
      receive_.push_back(hetcomm_buffer_host(host_.receive_slot(slot), bytes));
    }
  } else {
    for (std::vector<hetcomm_buffer_t>* buffers : {&send_, &receive_}) {
      hetcomm_memory_t* memory = nullptr;
      const uint64_t stride = stride_of(bytes);
      require(hetcomm_memory_allocate(session_.context(), device_,
                                      stride * static_cast<uint64_t>(slots), &memory),
              "allocating device memory");
      memories_.push_back(memory);
      for (int slot = 0; slot < slots; ++slot) {
        buffers->push_back(
            hetcomm_buffer_memory(memory, stride * static_cast<uint64_t>(slot), bytes));
      }
    }
    scratch_.resize(static_cast<size_t>(bytes));
  }
  counted_ = counters();
}

void HetcommBackend::fill(int slot, uint64_t seed) {
  if (memories_.empty()) return host_.fill(slot, seed);
  const hetcomm_buffer_t& buffer = send_[static_cast<size_t>(slot)];
  fill_pattern(scratch_.data(), bytes_, seed);
  require(hetcomm_memory_write(buffer.memory, buffer.offset, scratch_.data(), bytes_),
          "filling memory");
}

void HetcommBackend::clear(int slot) {
  if (memories_.empty()) return host_.clear(slot);
  const hetcomm_buffer_t& buffer = receive_[static_cast<size_t>(slot)];
  std::fill(scratch_.begin(), scratch_.end(), uint8_t{0});
  require(hetcomm_memory_write(buffer.memory, buffer.offset, scratch_.data(), bytes_),
          "clearing memory");
}

int64_t HetcommBackend::wrong(int slot, uint64_t seed) {
  if (memories_.empty()) return host_.wrong(slot, seed);
  const hetcomm_buffer_t& buffer = receive_[static_cast<size_t>(slot)];
  require(hetcomm_memory_read(buffer.memory, buffer.offset, scratch_.data(), bytes_),
          "reading memory");
  return count_wrong(scratch_.data(), bytes_, seed);
}

std::vector<hetcomm_counters_t> HetcommBackend::counters() const {
  std::vector<hetcomm_counters_t> entries(kMostTransports);
  size_t count = 0;
  if (ranks() < 2) return {};
  require(hetcomm_communicator_counters(communicator_, rank() == 0 ? 1 : 0, entries.size(),
                                        entries.data(), &count),
          "reading the counters");
  entries.resize(std::min(count, entries.size()));
  return entries;
}

std::string HetcommBackend::path() {
  std::string text;
  uint64_t most = 0;
  for (const hetcomm_counters_t& now : counters()) {
    hetcomm_counters_t before{};
    for (const hetcomm_counters_t& entry : counted_) {
      if (std::strcmp(entry.transport, now.transport) == 0) before = entry;
    }
    const uint64_t bytes = now.bytes_sent - before.bytes_sent + 1;
    if (bytes <= most) continue;
    most = bytes;
    const uint64_t eager = now.eager_sent - before.eager_sent;
    const uint64_t rendezvous = now.rendezvous_sent - before.rendezvous_sent;
    const char* bulk = now.bulk_by_get > before.bulk_by_get ? "get" : "put";
    // Words are eager whatever the data is: up to one for each message.
    const char* how = rendezvous == 0 ? "eager" : bulk;
    text = fmt::format("{}/{}{}", now.transport,
                       rendezvous > 0 && rendezvous * 8 < eager ? "eager+" : "", how);
  }
  return text;
}

void HetcommBackend::report_failure(hetcomm_status_t status,
                                    const hetcomm_completion_t& completion) {
  if (status != HETCOMM_OK) require(status, "waiting");
  fail(fmt::format("{}: {}", hetcomm_status_name(completion.status),
                   completion.text != nullptr && *completion.text != '\0'
                       ? completion.text
                       : hetcomm_status_text(completion.status)));
}

}  // namespace bench
