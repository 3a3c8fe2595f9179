#include "bench/hetcomm_backend.h"

namespace bench {
namespace {

// The maximum number of operations to try until one is direct.
constexpr int kMaxFirstOperations = 100;

int32_t own_device(const tools::Session& session, const Work& work) {
  return session.find_device(session.rank() == 0 ? work.first_memory : work.second_memory);
}

}  // namespace

HetcommBackend::HetcommBackend(const tools::Session& session, hetcomm_communicator_t* communicator,
                               const Work& work)
    : session_(session),
      communicator_(communicator),
      slots_(session, own_device(session, work)),
      traffic_(session, communicator) {
  ordered_.struct_size = sizeof(ordered_);
  if (work.stream) {
    tools::require(
        hetcomm_stream_create(session.context(), own_device(session, work), 0, &ordered_.stream),
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
  forget_peer();
  slots_.free();
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

void HetcommBackend::prepare(uint64_t bytes, int slots) {
  forget_peer();
  slots_.make(bytes, slots, nullptr);
  requests_.reserve(static_cast<size_t>(slots) * 2);
  traffic_.mark();
}

void HetcommBackend::forget_peer() {
  wait_all();
  tools::require(hetcomm_remote_memory_destroy(remote_), "releasing the peer's memory");
  remote_ = nullptr;
  if (slots_.exposed() == nullptr) return;
  tools::require(hetcomm_memory_unregister(slots_.exposed(), HETCOMM_TIMEOUT_INFINITE),
                 "unregistering memory");
}

void HetcommBackend::expose(uint64_t bytes, int slots, Exposed exposed) {
  forget_peer();
  slots_.make(bytes, slots, &exposed);
  requests_.reserve(static_cast<size_t>(slots) * 2);
  previous_.assign(static_cast<size_t>(slots), 0);
  notifying_.struct_size = sizeof notifying_;
  notifying_.flags = HETCOMM_OPERATION_NOTIFY;
  uint32_t access = HETCOMM_ACCESS_PUT | HETCOMM_ACCESS_GET;
  if (slots_.on_host()) access |= HETCOMM_ACCESS_ATOMIC;
  tools::require(hetcomm_memory_register(slots_.exposed(), communicator_, access,
                                         HETCOMM_REGISTER_CALLER_PROGRESS),
                 "registering memory");
  remote_ = exchange(slots_.exposed());
  // One rank warms up after the other, since a rank that waits for a word also makes progress for
  // its peer.
  if (rank() == 0) warm_up(exposed);
  if (rank() == 0) send_word(1, 0);
  receive_word(1 - rank());
  if (rank() == 1) warm_up(exposed);
  if (rank() == 1) send_word(0, 0);
  traffic_.mark();
}

// Sends a description of this rank's memory to the peer, and imports the peer's memory.
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
  const hetcomm_completion_t received = tools::wait(receive);
  tools::wait(send);
  hetcomm_remote_memory_t* remote = nullptr;
  tools::require(hetcomm_memory_import(communicator_, theirs.data(),
                                       static_cast<size_t>(received.bytes_received), &remote),
                 "importing memory");
  return remote;
}

// Repeats an operation until one is direct, but at most kMaxFirstOperations times. The owner's
// process may have to help until its memory is mapped.
void HetcommBackend::warm_up(Exposed exposed) {
  const uint64_t direct = traffic_.direct_operations();
  for (int i = 0; i < kMaxFirstOperations && traffic_.direct_operations() == direct; ++i) {
    exposed == Exposed::kSend ? start_get(0) : start_put(0);
    wait_all();
  }
}

// --- collective

void HetcommBackend::prepare_collective(Collective operation, uint64_t bytes) {
  forget_peer();
  slots_.make_mirrored(bytes);
  traffic_.mark();
  operation_ = operation;
}

void HetcommBackend::run_collective(bool in_place) {
  const hetcomm_datatype_t type = HETCOMM_FLOAT32;
  const hetcomm_reduction_t op = HETCOMM_REDUCE_SUM;
  const uint64_t part = slots_.bytes() / static_cast<uint64_t>(ranks());
  const uint64_t own = part * static_cast<uint64_t>(rank());
  const hetcomm_buffer_t in = slots_.send(0);
  const hetcomm_buffer_t out = slots_.receive(0);
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
  tools::wait(request);
}

}  // namespace bench
