// Implements the loops' back end with hetcomm. loops.h lists the functions of a back end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "bench/loops/collectives.h"
#include "bench/loops/samples.h"
#include "bench/slots.h"
#include "bench/traffic.h"
#include "bench/work.h"
#include "tools/common/session.h"

namespace bench {

class HetcommBackend {
 public:
  // |communicator| and |session| must outlive this object.
  HetcommBackend(const tools::Session& session, hetcomm_communicator_t* communicator,
                 const Work& work);
  ~HetcommBackend();
  HetcommBackend(const HetcommBackend&) = delete;
  HetcommBackend& operator=(const HetcommBackend&) = delete;

  int rank() const { return session_.rank(); }
  int ranks() const { return session_.ranks(); }

  void prepare(uint64_t bytes, int slots);
  void fill(int slot, uint64_t seed) { slots_.fill(slot, seed); }
  void clear(int slot) { slots_.clear(slot); }
  int64_t wrong(int slot, uint64_t seed) { return slots_.wrong(slot, seed); }
  volatile uint8_t* watch(int slot) const { return slots_.host().watch(slot); }
  uint8_t* send_slot(int slot) const { return slots_.host().send_slot(slot); }
  Slots& slots() { return slots_; }
  const Traffic& traffic() const { return traffic_; }
  // Returns the path of transfers since prepare() or expose(), such as "shm/eager" or "shm/direct".
  // After prepare(), this is the path of this rank's messages to rank 0, or on rank 0 to rank 1.
  // After expose(), it is the path of this rank's operations on the peer's memory.
  std::string path() const { return traffic_.path(remote_ != nullptr); }

  void send(int peer, int slot) { tools::wait(post_send(peer, slot)); }
  void receive(int peer, int slot) { tools::wait(post_receive(peer, slot)); }
  void start_send(int peer, int slot) { requests_.push_back(post_send(peer, slot, group_)); }
  void start_receive(int peer, int slot) { requests_.push_back(post_receive(peer, slot, group_)); }
  void wait_all() {
    if (group_ != nullptr) tools::require(hetcomm_group_start(group_), "starting a group");
    for (hetcomm_request_t* request : requests_) tools::wait(request);
    requests_.clear();
  }

  // Posts |count| sends behind a pending receive, and adds the duration of each call to |samples|.
  // Both ranks call it with the same count.
  void measure_posts(int count, Samples* samples);

  // --- one-sided: between ranks 0 and 1

  static constexpr bool kOneSided = true;
  static constexpr bool kNotifies = true;

  void expose(uint64_t bytes, int slots, Exposed exposed);
  void put(int slot) {
    hetcomm_request_t* request = post_put(slot, nullptr);
    hetcomm_completion_t completion;
    const hetcomm_status_t status = hetcomm_request_test(request, &completion);
    if (status == HETCOMM_PENDING) {
      requests_.push_back(request);
      return;
    }
    tools::require(status, "putting");
    tools::require(completion);
  }
  void start_put(int slot) { requests_.push_back(post_put(slot, nullptr)); }
  void start_notified_put(int slot) { requests_.push_back(post_put(slot, &notifying_)); }
  void start_get(int slot) {
    hetcomm_request_t* request = nullptr;
    tools::require(
        hetcomm_get(remote_, slots_.offset_of(slot), slots_.receive(slot), nullptr, &request),
        "getting");
    requests_.push_back(request);
  }
  void start_add(int slot) {
    hetcomm_request_t* request = nullptr;
    tools::require(hetcomm_fetch_add(remote_, slots_.offset_of(slot), 1,
                                     &previous_[static_cast<size_t>(slot)], nullptr, &request),
                   "adding");
    requests_.push_back(request);
  }
  uint64_t previous(int slot) const { return previous_[static_cast<size_t>(slot)]; }
  // Waits for all operations. A completed operation has taken effect at the owner.
  void reap() { wait_all(); }
  void finish() { wait_all(); }
  void progress() { tools::require(hetcomm_context_progress(session_.context()), "driving"); }
  void take_notification() {
    hetcomm_notification_t notification;
    tools::require(
        hetcomm_memory_wait_notification(slots_.exposed(), HETCOMM_TIMEOUT_INFINITE, &notification),
        "waiting for a notification");
  }

  // --- collective: see loops/collectives.h

  static constexpr bool kCollectives = true;

  void prepare_collective(Collective operation, uint64_t bytes);
  void run_collective(bool in_place);
  void slots_to_device() { slots_.write_mirror(); }
  void slots_from_device() { slots_.read_mirror(); }
  uint8_t* receive_slot(int slot) const { return slots_.host().receive_slot(slot); }

  void send_word(int peer, double value) {
    hetcomm_request_t* request = nullptr;
    tools::require(hetcomm_send(communicator_, peer, kWord,
                                hetcomm_buffer_host(&value, sizeof value), nullptr, &request),
                   "sending");
    tools::wait(request);
  }
  double receive_word(int peer) {
    double value = 0;
    hetcomm_request_t* request = nullptr;
    tools::require(hetcomm_recv(communicator_, peer, kWord, HETCOMM_EXACT_TAG,
                                hetcomm_buffer_host(&value, sizeof value), nullptr, &request),
                   "receiving");
    tools::wait(request);
    return value;
  }

 private:
  static constexpr uint64_t kData = 1;
  static constexpr uint64_t kWord = 2;
  static constexpr uint64_t kExport = 3;

  // Returns options that order operations in the stream, or nullptr if the work uses no stream.
  const hetcomm_operation_options_t* in_order(hetcomm_group_t* group) {
    if (ordered_.stream == nullptr) return nullptr;
    ordered_.group = group;
    return &ordered_;
  }
  hetcomm_request_t* post_send(int peer, int slot, hetcomm_group_t* group = nullptr) {
    hetcomm_request_t* request = nullptr;
    tools::require(
        hetcomm_send(communicator_, peer, kData, slots_.send(slot), in_order(group), &request),
        "sending");
    return request;
  }
  hetcomm_request_t* post_receive(int peer, int slot, hetcomm_group_t* group = nullptr) {
    hetcomm_request_t* request = nullptr;
    tools::require(hetcomm_recv(communicator_, peer, kData, HETCOMM_EXACT_TAG, slots_.receive(slot),
                                in_order(group), &request),
                   "receiving");
    return request;
  }
  hetcomm_request_t* post_put(int slot, const hetcomm_operation_options_t* options) {
    hetcomm_request_t* request = nullptr;
    tools::require(
        hetcomm_put(remote_, slots_.offset_of(slot), slots_.send(slot), options, &request),
        "putting");
    return request;
  }
  // Ends this rank's access to the peer's exposed memory, and the peer's access to this rank's.
  void forget_peer();
  hetcomm_remote_memory_t* exchange(hetcomm_memory_t* memory);
  void warm_up(Exposed exposed);

  const tools::Session& session_;
  hetcomm_communicator_t* communicator_;
  Slots slots_;
  Traffic traffic_;
  std::vector<hetcomm_request_t*> requests_;
  hetcomm_remote_memory_t* remote_ = nullptr;
  hetcomm_operation_options_t notifying_{};
  hetcomm_operation_options_t ordered_{};  // its stream is null unless the work requests one
  hetcomm_group_t* group_ = nullptr;       // starts operations together in the stream, or null
  std::vector<uint64_t> previous_;
  Collective operation_ = Collective::kBarrier;
  std::string algorithm_;
  hetcomm_collective_options_t collective_{};
};

}  // namespace bench
