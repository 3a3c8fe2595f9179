// The loops' back end over hetcomm (loops.h says what one has).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "bench/loops/buffers.h"
#include "bench/session.h"
#include "bench/work.h"

namespace bench {

class HetcommBackend {
 public:
  // |communicator| and |session| must outlive it.
  HetcommBackend(const Session& session, hetcomm_communicator_t* communicator, const Work& work);
  ~HetcommBackend();
  HetcommBackend(const HetcommBackend&) = delete;
  HetcommBackend& operator=(const HetcommBackend&) = delete;

  int rank() const { return session_.rank(); }
  int ranks() const { return session_.ranks(); }

  void prepare(uint64_t bytes, int slots);
  void fill(int slot, uint64_t seed);
  void clear(int slot);
  int64_t wrong(int slot, uint64_t seed);
  volatile uint8_t* watch(int slot) const { return host_.watch(slot); }
  // "shm/eager": how this rank's messages to the nearest rank went since prepare.
  std::string path();

  void send(int peer, int slot) { wait(post_send(peer, slot)); }
  void receive(int peer, int slot) { wait(post_receive(peer, slot)); }
  void start_send(int peer, int slot) { requests_.push_back(post_send(peer, slot)); }
  void start_receive(int peer, int slot) { requests_.push_back(post_receive(peer, slot)); }
  void wait_all() {
    for (hetcomm_request_t* request : requests_) wait(request);
    requests_.clear();
  }

  void send_word(int peer, double value) {
    hetcomm_request_t* request = nullptr;
    require(hetcomm_send(communicator_, peer, kWord, hetcomm_buffer_host(&value, sizeof value),
                         nullptr, &request),
            "sending");
    wait(request);
  }
  double receive_word(int peer) {
    double value = 0;
    hetcomm_request_t* request = nullptr;
    require(hetcomm_recv(communicator_, peer, kWord, HETCOMM_EXACT_TAG,
                         hetcomm_buffer_host(&value, sizeof value), nullptr, &request),
            "receiving");
    wait(request);
    return value;
  }

 private:
  static constexpr uint64_t kData = 1;
  static constexpr uint64_t kWord = 2;
  static constexpr size_t kMostTransports = 8;

  hetcomm_request_t* post_send(int peer, int slot) {
    hetcomm_request_t* request = nullptr;
    require(hetcomm_send(communicator_, peer, kData, send_[static_cast<size_t>(slot)], nullptr,
                         &request),
            "sending");
    return request;
  }
  hetcomm_request_t* post_receive(int peer, int slot) {
    hetcomm_request_t* request = nullptr;
    require(hetcomm_recv(communicator_, peer, kData, HETCOMM_EXACT_TAG,
                         receive_[static_cast<size_t>(slot)], nullptr, &request),
            "receiving");
    return request;
  }
  static void wait(hetcomm_request_t* request) {
    hetcomm_completion_t completion;
    const hetcomm_status_t status =
        hetcomm_request_wait(request, HETCOMM_TIMEOUT_INFINITE, &completion);
    if (status != HETCOMM_OK || completion.status != HETCOMM_OK) [[unlikely]] {
      report_failure(status, completion);
    }
  }
  [[noreturn]] static void report_failure(hetcomm_status_t status,
                                          const hetcomm_completion_t& completion);

  void free_memory();
  std::vector<hetcomm_counters_t> counters() const;

  const Session& session_;
  hetcomm_communicator_t* communicator_;
  int32_t device_ = HETCOMM_DEVICE_HOST;
  uint64_t bytes_ = 0;
  HostBuffers host_;  // unused where the device is not the host
  std::vector<hetcomm_memory_t*> memories_;
  std::vector<hetcomm_buffer_t> send_;
  std::vector<hetcomm_buffer_t> receive_;
  std::vector<hetcomm_request_t*> requests_;
  std::vector<hetcomm_counters_t> counted_;
  std::vector<uint8_t> scratch_;
};

}  // namespace bench
