// SelfEndpoint is a rank's connection to itself. One object serves as both ends.
//
// Messages wait in a bounded queue of fixed slots. Puts and gets are copies between two extent
// lists. progress() delivers messages and copies bulk data in bounded steps, so send(), put() and
// get() never call the handler. The connection cannot fail.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transports/transport.h"

namespace hetcomm::self {

class SelfTransport;

class SelfEndpoint final : public Endpoint,
                           public PutStarter,
                           public GetStarter,
                           public MemoryExposer {
 public:
  // |transport| must outlive the endpoint.
  explicit SelfEndpoint(SelfTransport& transport);
  ~SelfEndpoint() override;

  void set_handler(EndpointHandler* handler) override { handler_ = handler; }
  const Capabilities& capabilities() const override;
  EndpointAbilities abilities() override { return {.puts = this, .gets = this, .exposer = this}; }
  Code send(const MessageHeader& header, const ExtentView& payload) override;
  void close() override {}
  bool flushed() const override { return head_ == tail_ && !has_bulks(); }
  std::string describe() const override { return "self, queue of 32 messages"; }

  Code put(Bulk& bulk) override;
  Code get(Bulk& bulk) override;
  Result<RemoteKey> expose(Extents extents, Access access, uint64_t cookie) override;
  void revoke(const RemoteKey& key) override;
  void release(const RemoteKey& key) override { revoke(key); }
  bool cancel(Bulk& bulk) override;

  // --- for SelfTransport
  int progress();
  bool has_work() const { return head_ != tail_ || has_bulks() || want_room_; }

 private:
  static constexpr uint64_t kSlots = 32;

  struct Slot {
    MessageHeader header;
    uint32_t length = 0;
    std::unique_ptr<std::byte[]> payload;  // max_payload_bytes, allocated at first use
  };
  // Exposed memory. Its key is {generation << 32 | index + 1, access}.
  struct Exposure {
    std::vector<iovec> extents;
    uint64_t total = 0;
    uint64_t cookie = 0;
    uint32_t generation = 0;
    Access access = Access::kPutTarget;
    bool live = false;
  };
  struct List {
    Bulk* head = nullptr;
    Bulk* tail = nullptr;
  };

  bool has_bulks() const { return lists_[0].head != nullptr || lists_[1].head != nullptr; }
  Exposure* find(const RemoteKey& key);
  Code accept(Bulk& bulk, Access access);
  int deliver_messages();
  int copy_bulks();
  // Copies at most |most| bytes of |bulk|.
  void copy_step(Bulk& bulk, uint64_t most);
  void remove(Bulk& bulk);

  SelfTransport& transport_;
  EndpointHandler* handler_ = nullptr;
  std::array<Slot, kSlots> slots_;
  uint64_t head_ = 0;  // next slot to fill
  uint64_t tail_ = 0;  // next slot to deliver
  bool want_room_ = false;
  std::array<List, 2> lists_;  // high priority, normal
  std::vector<Exposure> exposures_;
  std::vector<uint32_t> free_;
};

}  // namespace hetcomm::self
