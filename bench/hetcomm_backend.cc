#include "bench/hetcomm_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/core.h>

#include "bench/loops/samples.h"

namespace bench {
HetcommBackend::HetcommBackend(const tools::Session& session, hetcomm_communicator_t* communicator,
                               const Work& work)
    : session_(session), communicator_(communicator) {
  device_ = session.find_device(session.rank() == 0 ? work.first_memory : work.second_memory);
  ordered_.struct_size = sizeof(ordered_);
  if (work.stream) {
    tools::require(hetcomm_stream_create(session.context(), device_, 0, &ordered_.stream),
                   "making a stream");
    tools::require(hetcomm_group_create(communicator, &group_), "making a group");
    collective_.stream = ordered_.stream;
  }
  if (work.algorithm != "chosen") algorithm_ = work.algorithm;
  collective_.struct_size = sizeof(collective_);
  collective_.timeout_ns = HETCOMM_TIMEOUT_INFINITE;
  collective_.factor = 1;
  if (!algorithm_.empty()) collective_.algorithm = algorithm_.c_str();
}

HetcommBackend::~HetcommBackend() {
  free_memory();
  hetcomm_group_destroy(group_);
  // The device may report slightly late that its stream is idle.
  hetcomm_status_t status = HETCOMM_BUSY;
  while ((status = hetcomm_stream_destroy(ordered_.stream)) == HETCOMM_BUSY) {
  }
  tools::require(status, "releasing the stream");
}

void HetcommBackend::measure_posts(int count, Samples* samples) {
  requests_.reserve(static_cast<size_t>(count) + 1);
  if (rank() > 1) return;
  if (rank() == 1) {
    for (int i = 0; i < count; ++i) requests_.push_back(post_receive(0, 0));
    receive_word(0);
    send_word(0, 0);
    wait_all();
    return;
  }
  double word = 0;
  hetcomm_request_t* gate = nullptr;
  tools::require(hetcomm_recv(communicator_, 1, kWord, HETCOMM_EXACT_TAG,
                              hetcomm_buffer_host(&word, sizeof word), in_order(nullptr), &gate),
                 "receiving");
  requests_.push_back(gate);
  for (int i = 0; i < count; ++i) {
    samples->start();
    hetcomm_request_t* const request = post_send(1, 0);
    samples->stop();
    requests_.push_back(request);
  }
  send_word(1, 0);
  wait_all();
}

void HetcommBackend::free_memory() {
  wait_all();
  tools::require(hetcomm_remote_memory_destroy(remote_), "releasing the peer's memory");
  remote_ = nullptr;
  if (exposed_ != nullptr) {
    tools::require(hetcomm_memory_unregister(exposed_, HETCOMM_TIMEOUT_INFINITE),
                   "unregistering memory");
  }
  exposed_ = nullptr;
  host_.give_back();
  for (hetcomm_memory_t* memory : memories_)
    tools::require(hetcomm_memory_destroy(memory), "freeing memory");
  memories_.clear();
}

hetcomm_memory_t* HetcommBackend::allocate(uint64_t size) {
  hetcomm_memory_t* memory = nullptr;
  tools::require(hetcomm_memory_allocate(session_.context(), device_, size, &memory),
                 "allocating device memory");
  memories_.push_back(memory);
  return memory;
}

// Makes the buffers. Those on the |exposed| side, if any, are in memory that can be registered.
void HetcommBackend::make_buffers(uint64_t bytes, int slots, const Exposed* exposed) {
  bytes_ = bytes;
  send_.clear();
  receive_.clear();
  free_memory();
  requests_.reserve(static_cast<size_t>(slots) * 2);
  const uint64_t size = SlotMemory::size(bytes, slots);
  if (device_ == HETCOMM_DEVICE_HOST) {
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
  counted_ = counters();
}

void HetcommBackend::expose(uint64_t bytes, int slots, Exposed exposed) {
  make_buffers(bytes, slots, &exposed);
  previous_.assign(static_cast<size_t>(slots), 0);
  notifying_.struct_size = sizeof notifying_;
  notifying_.flags = HETCOMM_OPERATION_NOTIFY;
  uint32_t access = HETCOMM_ACCESS_PUT | HETCOMM_ACCESS_GET;
  if (device_ == HETCOMM_DEVICE_HOST) access |= HETCOMM_ACCESS_ATOMIC;
  tools::require(
      hetcomm_memory_register(exposed_, communicator_, access, HETCOMM_REGISTER_CALLER_PROGRESS),
      "registering memory");
  remote_ = exchange(exposed_);
  // Warm up one rank after the other: a rank that waits for a word serves its peer.
  if (rank() == 0) warm_up(exposed);
  if (rank() == 0) send_word(1, 0);
  receive_word(1 - rank());
  if (rank() == 1) warm_up(exposed);
  if (rank() == 1) send_word(0, 0);
  counted_ = counters();
}

// Exchanges this rank's memory for the peer's.
hetcomm_remote_memory_t* HetcommBackend::exchange(hetcomm_memory_t* memory) {
  std::vector<uint8_t> mine(HETCOMM_EXPORT_MAX_BYTES);
  std::vector<uint8_t> theirs(HETCOMM_EXPORT_MAX_BYTES);
  size_t size = 0;
  tools::require(hetcomm_memory_export(memory, mine.size(), mine.data(), &size),
                 "exporting memory");
  const int peer = 1 - rank();
  hetcomm_request_t* send = nullptr;
  hetcomm_request_t* receive = nullptr;
  tools::require(hetcomm_recv(communicator_, peer, kExport, HETCOMM_EXACT_TAG,
                              hetcomm_buffer_host(theirs.data(), theirs.size()), nullptr, &receive),
                 "receiving");
  tools::require(hetcomm_send(communicator_, peer, kExport, hetcomm_buffer_host(mine.data(), size),
                              nullptr, &send),
                 "sending");
  hetcomm_completion_t received{};
  tools::require(hetcomm_request_wait(receive, HETCOMM_TIMEOUT_INFINITE, &received), "waiting");
  if (received.status != HETCOMM_OK) report_failure(HETCOMM_OK, received);
  wait(send);
  hetcomm_remote_memory_t* remote = nullptr;
  tools::require(hetcomm_memory_import(communicator_, theirs.data(),
                                       static_cast<size_t>(received.bytes_received), &remote),
                 "importing memory");
  return remote;
}

// Performs the first operations, for which the owner may have to help until its memory is mapped.
void HetcommBackend::warm_up(Exposed exposed) {
  const uint64_t direct = direct_operations();
  for (int i = 0; i < kMaxFirstOperations && direct_operations() == direct; ++i) {
    exposed == Exposed::kSend ? start_get(0) : start_put(0);
    wait_all();
  }
}

uint64_t HetcommBackend::direct_operations() const {
  uint64_t count = 0;
  for (const hetcomm_counters_t& entry : counters()) count += entry.direct;
  return count;
}

void HetcommBackend::fill(int slot, uint64_t seed) {
  if (device_ == HETCOMM_DEVICE_HOST) return host_.fill(slot, seed);
  const hetcomm_buffer_t& buffer = send_[static_cast<size_t>(slot)];
  fill_pattern(scratch_.data(), bytes_, seed);
  tools::require(hetcomm_memory_write(buffer.memory, buffer.offset, scratch_.data(), bytes_),
                 "filling memory");
}

void HetcommBackend::clear(int slot) {
  if (device_ == HETCOMM_DEVICE_HOST) return host_.clear(slot);
  const hetcomm_buffer_t& buffer = receive_[static_cast<size_t>(slot)];
  std::fill(scratch_.begin(), scratch_.end(), uint8_t{0});
  tools::require(hetcomm_memory_write(buffer.memory, buffer.offset, scratch_.data(), bytes_),
                 "clearing memory");
}

int64_t HetcommBackend::wrong(int slot, uint64_t seed) {
  if (device_ == HETCOMM_DEVICE_HOST) return host_.wrong(slot, seed);
  const hetcomm_buffer_t& buffer = receive_[static_cast<size_t>(slot)];
  tools::require(hetcomm_memory_read(buffer.memory, buffer.offset, scratch_.data(), bytes_),
                 "reading memory");
  return count_wrong(scratch_.data(), bytes_, seed);
}

double HetcommBackend::copy_us(double seconds, const CopyShares& shares) {
  if (device_ == HETCOMM_DEVICE_HOST) return 0;
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

std::vector<hetcomm_counters_t> HetcommBackend::counters() const {
  std::vector<hetcomm_counters_t> entries(kMaxTransports,
                                          {.struct_size = sizeof(hetcomm_counters_t)});
  size_t count = 0;
  if (ranks() < 2) return {};
  tools::require(hetcomm_communicator_counters(communicator_, rank() == 0 ? 1 : 0, entries.size(),
                                               entries.data(), &count),
                 "reading the counters");
  entries.resize(std::min(count, entries.size()));
  return entries;
}

hetcomm_counters_t HetcommBackend::since_counted(const hetcomm_counters_t& now) const {
  hetcomm_counters_t since = now;
  for (const hetcomm_counters_t& before : counted_) {
    if (std::strcmp(before.transport, now.transport) != 0) continue;
    since.bytes_sent -= before.bytes_sent;
    since.eager_sent -= before.eager_sent;
    since.rendezvous_sent -= before.rendezvous_sent;
    since.bulk_by_get -= before.bulk_by_get;
    since.puts -= before.puts;
    since.gets -= before.gets;
    since.atomics -= before.atomics;
    since.direct -= before.direct;
    since.bytes_received -= before.bytes_received;
    since.staged_chunks -= before.staged_chunks;
    since.device_bytes_direct -= before.device_bytes_direct;
    since.device_bytes_staged -= before.device_bytes_staged;
    since.mapped_chunks -= before.mapped_chunks;
  }
  return since;
}

double HetcommBackend::staged_chunk_bytes() const {
  uint64_t bytes = 0;
  uint64_t chunks = 0;
  for (const hetcomm_counters_t& now : counters()) {
    const hetcomm_counters_t since = since_counted(now);
    bytes += rank() == 0 ? since.bytes_sent : since.bytes_received;
    chunks += since.staged_chunks;
  }
  return chunks == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(chunks);
}

std::string HetcommBackend::path() {
  std::string text;
  uint64_t most = 0;
  for (const hetcomm_counters_t& now : counters()) {
    const hetcomm_counters_t since = since_counted(now);
    const uint64_t operations = since.puts + since.gets + since.atomics;
    const uint64_t work = remote_ != nullptr ? operations : since.bytes_sent + 1;
    if (work <= most) continue;
    most = work;
    const char* mixed = "";
    const char* how = "eager";
    if (remote_ != nullptr) {
      how = since.direct > 0 ? "direct" : "message";
      if (since.direct > 0 && since.direct < operations) mixed = "message+";
    } else if (since.rendezvous_sent > 0) {
      how = since.mapped_chunks > 0 ? "map" : since.bulk_by_get > 0 ? "get" : "put";
      // Words are always eager. There is up to one for each message.
      if (since.rendezvous_sent * 8 < since.eager_sent) mixed = "eager+";
    } else if (since.bulk_by_get * 2 > since.messages_received) {
      how = "pull";
    }
    // Name the path of device memory. Direct bytes of one-sided operations were direct at both
    // ends.
    const char* device = since.device_bytes_staged > 0                         ? "+staged"
                         : since.device_bytes_direct > 0 && remote_ == nullptr ? "+direct"
                                                                               : "";
    text = fmt::format("{}/{}{}{}", now.transport, mixed, how, device);
  }
  return text;
}

void HetcommBackend::report_failure(hetcomm_status_t status,
                                    const hetcomm_completion_t& completion) {
  if (status != HETCOMM_OK) tools::require(status, "waiting");
  tools::fail(fmt::format("{}: {}", hetcomm_status_name(completion.status),
                          completion.text != nullptr && *completion.text != '\0'
                              ? completion.text
                              : hetcomm_status_text(completion.status)));
}

// --- collective

void HetcommBackend::prepare_collective(Collective operation, uint64_t bytes) {
  prepare(bytes, 1);
  operation_ = operation;
  if (device_ != HETCOMM_DEVICE_HOST) host_.prepare(bytes, 1);
}

void HetcommBackend::slots_to_device() {
  if (device_ == HETCOMM_DEVICE_HOST || bytes_ == 0) return;
  for (const auto& [buffer, slot] :
       {std::pair(send_[0], host_.send_slot(0)), std::pair(receive_[0], host_.receive_slot(0))}) {
    tools::require(hetcomm_memory_write(buffer.memory, buffer.offset, slot, bytes_),
                   "filling memory");
  }
}

void HetcommBackend::slots_from_device() {
  if (device_ == HETCOMM_DEVICE_HOST || bytes_ == 0) return;
  for (const auto& [buffer, slot] :
       {std::pair(send_[0], host_.send_slot(0)), std::pair(receive_[0], host_.receive_slot(0))}) {
    tools::require(hetcomm_memory_read(buffer.memory, buffer.offset, slot, bytes_),
                   "reading memory");
  }
}

void HetcommBackend::run_collective(bool in_place) {
  const hetcomm_datatype_t type = HETCOMM_FLOAT32;
  const hetcomm_reduction_t op = HETCOMM_REDUCE_SUM;
  const uint64_t part = bytes_ / static_cast<uint64_t>(ranks());
  const uint64_t own = part * static_cast<uint64_t>(rank());
  const hetcomm_buffer_t in = send_[0];
  const hetcomm_buffer_t out = receive_[0];
  const auto part_of = [part](hetcomm_buffer_t buffer, uint64_t offset) {
    buffer.offset += offset;
    buffer.length = part;
    return buffer;
  };
  const bool plain = algorithm_.empty() && ordered_.stream == nullptr;
  const hetcomm_collective_options_t* options = plain ? nullptr : &collective_;
  hetcomm_request_t* request = nullptr;
  hetcomm_status_t status = HETCOMM_OK;
  switch (operation_) {
    case Collective::kBarrier:
      status = hetcomm_barrier(communicator_, options, &request);
      break;
    case Collective::kBroadcast:
      status = hetcomm_broadcast(communicator_, 0, out, type, options, &request);
      break;
    case Collective::kReduce:
      status = hetcomm_reduce(communicator_, 0, in, out, type, op, options, &request);
      break;
    case Collective::kAllreduce:
      status =
          hetcomm_allreduce(communicator_, in_place ? out : in, out, type, op, options, &request);
      break;
    case Collective::kAllgather:
      status = hetcomm_allgather(communicator_, in_place ? part_of(out, own) : part_of(in, 0), out,
                                 type, options, &request);
      break;
    case Collective::kReduceScatter:
      status =
          hetcomm_reduce_scatter(communicator_, in, in_place ? part_of(in, own) : part_of(out, 0),
                                 type, op, options, &request);
      break;
    case Collective::kAlltoall:
      status = hetcomm_alltoall(communicator_, in, out, type, options, &request);
      break;
  }
  tools::require(status, "starting a collective operation");
  wait(request);
}

}  // namespace bench
