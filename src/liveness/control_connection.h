// A control connection carries frames both ways over a stream socket, after both sides have proved
// the secret.
//
// Over a local socket each side first sends a descriptor of its own process (a pidfd). The
// descriptor becomes readable when the process exits, even if the process is in another PID
// namespace. Descriptors cannot be sent through TLS. With TLS the end of the connection and the
// refusal of a new one are the only evidence of an exit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/liveness/frame.h"
#include "src/liveness/network.h"
#include "src/net/address.h"
#include "src/net/poller.h"
#include "src/net/stream_socket.h"
#include "src/system/unique_fd.h"

namespace hetcomm::liveness {

class ControlConnection;

// Upcalls come from the poller or from read_out(), never from inside send() or close(). A handler
// must not destroy a connection inside on_ended() or on_closed(), only after their return.
class ControlConnectionHandler {
 public:
  virtual void on_frame(ControlConnection& connection, Frame& frame) = 0;
  virtual void on_room(ControlConnection& connection) = 0;
  // Reports that the connection broke, and why.
  virtual void on_ended(ControlConnection& connection, const std::string& why) = 0;
  // Reports, after close(), that the peer has closed its end too, or that the connection has
  // broken.
  virtual void on_closed(ControlConnection& connection) = 0;
  // Receives a descriptor of the peer's process.
  virtual void on_process(ControlConnection& connection, UniqueFd process) = 0;

 protected:
  ~ControlConnectionHandler() = default;
};

class ControlConnection final : private Watcher {
 public:
  ControlConnection(Poller& poller, ControlConnectionHandler& handler, ConnectionId id, int rank,
                    int size)
      : poller_(poller), handler_(handler), id_(id), rank_(rank), size_(size) {}
  ~ControlConnection();
  ControlConnection(const ControlConnection&) = delete;
  ControlConnection& operator=(const ControlConnection&) = delete;

  // Takes ownership of |socket|. |own_process| is the pidfd to send over a local socket, -1 for
  // none.
  Status start(StreamSocket socket, int own_process);
  ConnectionId id() const { return id_; }
  int rank() const { return rank_; }
  bool is_local() const { return local_; }
  // Returns whether both ends belong to this process.
  bool is_of_this_process() const;
  const Address& peer_address() const { return peer_address_; }

  // Queues |frame|. Returns false if too many bytes are already queued; on_room() then follows.
  bool send(const Frame& frame);
  // Sends the queued frames, then shuts down the sending side. on_closed() follows, unless the
  // owner destroys the connection first.
  void close();
  // Reads all data that has arrived and delivers its frames.
  void read_out();
  uint64_t last_acknowledged_ns(uint64_t now) const;

 private:
  // While more than this many bytes are queued for a slow peer, send() refuses frames. News and
  // letters have queues of their own.
  static constexpr size_t kMaxWaiting = 16 * 1024;

  void on_events(uint32_t events) override;
  void write_out();
  void read_in(size_t most);
  void parse();
  ssize_t receive(void* data, size_t size);
  Status hand_over(int own_process);
  void shut_down();
  void end(std::string why);
  void finish_closing();

  Poller& poller_;
  ControlConnectionHandler& handler_;
  const ConnectionId id_;
  const int rank_;
  const int size_;
  StreamSocket socket_;
  Address peer_address_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  std::string broken_;  // text of a failed write; the next event reports it
  bool local_ = false;
  bool awaits_process_ = false;  // the first byte, with the peer's descriptor, has not arrived
  bool wants_write_ = false;
  bool wants_room_ = false;
  bool closing_ = false;
  bool ended_ = false;
};

}  // namespace hetcomm::liveness
