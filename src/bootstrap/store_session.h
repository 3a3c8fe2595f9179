// A StoreSession serves one client of the store. It reads requests, writes replies, and notifies
// its owner when the client has broken the protocol or closed the connection.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "src/bootstrap/store_protocol.h"
#include "src/bootstrap/store_table.h"
#include "src/net/poller.h"
#include "src/net/stream_socket.h"
#include "src/system/clock.h"

namespace hetcomm {

class StoreSession final : public Watcher {
 public:
  class Owner {
   public:
    // Handles a request. Returns false if the client must be dropped.
    virtual bool on_request(ClientId client, const std::string& name, ConstByteSpan body) = 0;
    // Reports that the session is closed. The owner can destroy it after this round of events.
    virtual void on_closed(ClientId client, std::string_view why) = 0;

   protected:
    ~Owner() = default;
  };

  StoreSession(Owner& owner, Poller& poller, ClientId id, StreamSocket socket);
  ~StoreSession() { poller_.remove(socket_.get(), *this); }

  Status watch();
  const std::string& name() const { return name_; }
  bool closed() const { return closed_; }
  bool flushed() const { return out_.empty() && socket_.flushed(); }
  // Returns when the session became idle, or kForever while the store owes it a reply. A client
  // that does not read its reply counts as idle since the last byte was sent to it.
  uint64_t quiet_since_ns() const { return waits_ ? kForever : quiet_since_ns_; }

  // Drops the client. The owner destroys the session later, between two rounds of events.
  void drop(std::string_view why) { close(why); }
  void send(const Frame& frame);
  void on_events(uint32_t events) override;

 private:
  void close(std::string_view why);
  uint32_t wanted_events() const { return EPOLLIN | (writing_ ? uint32_t{EPOLLOUT} : 0); }
  void read_some();
  void flush();

  Owner& owner_;
  Poller& poller_;
  const ClientId id_;
  StreamSocket socket_;
  const std::string name_;
  std::vector<std::byte> in_;
  std::deque<Frame> out_;
  size_t out_done_ = 0;
  uint64_t quiet_since_ns_;
  bool waits_ = false;  // the client is waiting for a reply
  bool writing_ = false;
  bool closed_ = false;
};

}  // namespace hetcomm
