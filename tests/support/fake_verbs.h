// A fake verbs table without hardware. Its devices, queue pairs and memory exist in this process.
// It makes a device's checks (rights, ranges, states) and fails on demand. A work request is
// executed while it is posted, so timing cannot be tested.
//
// Like the strictest devices, it
//   * moves no data between queue pairs whose addresses (GIDs of one type, or LIDs), packet
//     numbers, MTUs or numbers of reads do not match;
//   * accepts no more work requests than the send queue's depth, and frees a slot only when the
//     completion of its request, or of a later one, has been polled;
//   * refuses lists longer than requested, and receives beyond the shared queue's size;
//   * fails a completion queue that overflows;
//   * discards the completions of a destroyed queue pair, including those of receives.
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
  std::string rate;  // content of the sysfs file; empty: derived from |active_speed|
};
struct FakeDeviceSpec {
  std::string name = "fake0";
  std::vector<FakePort> ports;
  uint32_t vendor = 0;
  uint32_t max_inline = 128;
  int max_pieces = 8;  // per work request
  int max_reads = 16;  // reads that it serves concurrently
  bool may_open = true;
  int max_shared_queues = 100;  // 0: no shared receive queues
  ibv_transport_type transport = IBV_TRANSPORT_IB;
};

// The only fabric of the process. Threads may use it concurrently.
class FakeFabric {
 public:
  // Discards all state and installs |devices|, or a single device with one port.
  static void reset();
  static void reset(std::vector<FakeDeviceSpec> devices);
  static const rdma::Verbs& verbs();

  // Writes the kernel's files about the devices into |folder|, which must outlive the devices. They
  // use these files from now on.
  static void show_files(const std::string& folder);

  // --- failures on demand
  // Makes the next |times| attempts to open |device| fail with |error|.
  static void fail_opens(size_t device, int error, int times = INT_MAX);
  // Completes the next work request that has |opcode| (-1: any) and is posted to |queue_pair| (0:
  // any) with |status|.
  static void fail_next(ibv_wc_status status, int opcode = -1, uint32_t queue_pair = 0);
  // Lets |count| more registrations succeed, then fails the next |failures| (by default all) with
  // |error|. An error of 0 stops the failures.
  static void fail_registrations(int error, int count = 0, int failures = INT_MAX);
  // Makes the next |failures| deregistrations fail with |error| without any effect.
  static void fail_deregistrations(int error, int failures = 1);
  // Selects whether mappable memory files are accepted as dma-bufs (0) or rejected with |error|.
  // After reset() they are rejected with EOPNOTSUPP.
  static void accept_dmabufs(int error = 0);
  // Selects which device accesses use the wrong address instead of registered memory. This applies
  // to dma-bufs, and to plain registrations that begin in [begin, + bytes).
  enum class Misplaced : uint8_t { kNothing, kReads, kWrites };
  static void misplace(Misplaced what, const void* begin = nullptr, size_t bytes = 0);
  // Refuses the next |times| work requests.
  static void refuse_posts(int times);
  // Executes the next work request without generating a completion.
  static void lose_next();
  static void fail_queue_pairs(int error);
  // Holds the next RDMA write of |length| bytes in the network, as a switch with a full queue does.
  // Its sender gets no completion, even when the sender's queue pair is destroyed.
  static void hold_write(uint64_t length);
  static size_t held_writes();
  static uint32_t held_sender();  // queue pair that sent the first held write
  // Delivers the held writes whose target queue pair can still receive. Returns the number
  // delivered.
  static size_t release_writes();
  // Gives each new queue pair the lowest free number.
  static void reuse_numbers();
  // Keeps the completions of destroyed queue pairs, as Soft-RoCE does.
  static void keep_completions();
  // Puts |queue_pair| into the error state without a completion or an event.
  static void silence(uint32_t queue_pair);
  static void raise(ibv_event_type type, int port = 1);  // on every open device
  static void raise_queue_pair(ibv_event_type type, uint32_t number);
  // Removes all receives from the queue that |queue_pair| uses, as if other queue pairs had
  // consumed them.
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
  // A queue pair's retry limit and its timeout (the exponent).
  struct Patience {
    int retries;
    int timeout;
  };
  static Patience patience_of(uint32_t number);
  static size_t registrations();
  static uint64_t registered_bytes();
  // Returns the number of receives in the shared queue that |queue_pair| uses.
  static size_t posted_receives(uint32_t queue_pair);
  static size_t open_objects();  // objects of all kinds
  // Returns the names of open devices, one for each context.
  static std::vector<std::string> open_devices();
  // Returns how often devices have been opened since reset().
  static size_t opens();
  static uint64_t posts();      // post_send() calls
  static uint64_t requests();   // work requests in those calls
  static uint64_t signalled();  // signalled work requests
  static uint64_t not_ready();  // messages that found no receive posted
};

}  // namespace hetcomm::test
