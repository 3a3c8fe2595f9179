// A fake table of verbs without hardware: devices, queue pairs and memory of this process, with a
// device's checks (rights, ranges, states) and failures on demand. A work request is carried out
// while it is posted, so nothing here says anything about timing.
//
// Like the strictest of devices, it
//   * moves nothing between queue pairs whose addresses (GIDs of one type, or LIDs), packet
//     numbers, MTUs or numbers of reads do not fit each other;
//   * takes no more work requests than the send queue is deep, and frees a place only when the
//     completion of its request, or of a later one, was taken;
//   * refuses lists longer than asked for, and receives beyond the shared queue's size;
//   * fails a completion queue that overflows;
//   * forgets the completions of a queue pair that is destroyed, receives among them.
//
// Tests that use it run over a fake, not on hardware.
#pragma once

#include <climits>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/span.h"
#include "transports/rdma/verbs.h"

namespace hetcomm::test {

struct FakeGid {
  std::vector<uint8_t> bytes;  // 16 bytes
  uint32_t type = IBV_GID_TYPE_ROCE_V2;
};
FakeGid ipv4_gid(uint8_t last);

struct FakePort {
  ibv_port_state state = IBV_PORT_ACTIVE;
  uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  uint16_t lid = 0;
  ibv_mtu active_mtu = IBV_MTU_1024;
  std::vector<FakeGid> gids;
  uint32_t max_message_bytes = 1u << 30;
  uint8_t active_speed = 32;
  std::string rate;  // as its file has it; empty: derived from |active_speed|
};
struct FakeDeviceSpec {
  std::string name = "fake0";
  std::vector<FakePort> ports;
  uint32_t vendor = 0;
  uint32_t max_inline = 128;
  int max_pieces = 8;  // per work request
  int max_reads = 16;  // that it serves concurrently
  bool may_open = true;
  int max_shared_queues = 100;  // 0: no shared receive queues
  ibv_transport_type transport = IBV_TRANSPORT_IB;
};

// The only fabric of the process. Threads may use it concurrently.
class FakeFabric {
 public:
  // Forgets everything. The devices are |devices|, or a single one with one port.
  static void reset();
  static void reset(std::vector<FakeDeviceSpec> devices);
  static const rdma::Verbs& verbs();

  // Writes the kernel's files about the devices into |folder|, which outlives them. From now on the
  // devices use these files.
  static void show_files(const std::string& folder);

  // --- failures on demand
  // The next |times| attempts to open |device| fail with |error|.
  static void fail_opens(size_t device, int error, int times = INT_MAX);
  // The next work request with |opcode| (-1: any) posted by |queue_pair| (0: any) ends with
  // |status|.
  static void fail_next(ibv_wc_status status, int opcode = -1, uint32_t queue_pair = 0);
  // After |count| more registrations, the next |failures| (or all) fail with |error|. An error of 0
  // ends that.
  static void fail_registrations(int error, int count = 0, int failures = INT_MAX);
  // The next |failures| deregistrations fail with |error| and do nothing.
  static void fail_deregistrations(int error, int failures = 1);
  // With 0, mappable memory files are accepted as dma-bufs. Otherwise registering one fails with
  // |error|; after reset() it fails with EOPNOTSUPP.
  static void accept_dmabufs(int error = 0);
  // Devices read from, or write to, the wrong place instead of registered memory. This applies to
  // dma-bufs, and to plain registrations that begin in [begin, + bytes).
  enum class Misplaced : uint8_t { kNothing, kReads, kWrites };
  static void misplace(Misplaced what, const void* begin = nullptr, size_t bytes = 0);
  // The next |times| work requests are refused.
  static void refuse_posts(int times);
  // The next work request is carried out without a completion.
  static void lose_next();
  static void fail_queue_pairs(int error);
  // The next RDMA write of |length| bytes leaves its sender and stays in the network, as in a
  // switch with a full queue. Its sender gets no completion, even when its queue pair ends.
  static void hold_write(uint64_t length);
  static size_t held_writes();
  static uint32_t held_sender();  // queue pair of the first write held
  // Delivers the held writes whose target queue pair can still receive. Returns how many arrived.
  static size_t release_writes();
  // A new queue pair gets the lowest free number.
  static void reuse_numbers();
  // Completions outlive their queue pair, as they do with Soft-RoCE.
  static void keep_completions();
  // Puts |queue_pair| into the error state without a completion or an event.
  static void silence(uint32_t queue_pair);
  static void raise(ibv_event_type type, int port = 1);  // on every open device
  static void raise_queue_pair(ibv_event_type type, uint32_t number);
  // Removes all receives from the queue that |queue_pair| uses, as if others had consumed them.
  static void lose_receives(uint32_t queue_pair);
  static void set_gid(size_t device, size_t port, size_t index, const FakeGid& gid);
  static void set_state(size_t device, size_t port, ibv_port_state state);  // the files keep theirs
  static void set_lid(size_t device, size_t port, uint16_t lid);
  // Injects a message, or a write of |length| bytes with an immediate, as if the peer of
  // |queue_pair| had sent it.
  static void inject_message(uint32_t queue_pair, ConstByteSpan bytes);
  static void inject_immediate(uint32_t queue_pair, uint32_t immediate, uint32_t length,
                               bool with_flag = true);
  static void inject_receive_error(uint32_t queue_pair, ibv_wc_status status);

  // --- what happened
  static std::vector<uint32_t> queue_pairs();  // numbers of the existing ones
  // The number of retries of queue pair |number| before it fails, and its timeout (the exponent).
  struct Patience {
    int retries;
    int timeout;
  };
  static Patience patience_of(uint32_t number);
  static size_t registrations();
  static uint64_t registered_bytes();
  // The number of receives in the shared queue that |queue_pair| uses.
  static size_t posted_receives(uint32_t queue_pair);
  static size_t open_objects();  // of all kinds
  // The names of open devices, one for each context.
  static std::vector<std::string> open_devices();
  // The number of times that devices were opened since reset().
  static size_t opens();
  static uint64_t posts();      // post_send() calls
  static uint64_t requests();   // work requests in those calls
  static uint64_t signalled();  // signalled work requests
  static uint64_t not_ready();  // messages that found no receive posted
};

}  // namespace hetcomm::test
