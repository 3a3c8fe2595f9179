// TcpStream is one socket of a connection. It reads frames into their destinations, and writes
// frames from their sources.
//
// The socket is registered for EPOLLIN while it can be read, and also for EPOLLOUT while it is
// parked. It is parked when it has been full for so long that further polling is wasteful, or when
// the context is about to sleep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "src/base/status.h"
#include "src/net/poller.h"
#include "src/net/stream_socket.h"
#include "transports/tcp/frame_reader.h"
#include "transports/tcp/frame_writer.h"
#include "transports/tcp/path.h"

namespace hetcomm::tcp {

class TcpEndpoint;
class TcpTransport;

class TcpStream final : public Watcher {
 public:
  // The stream with |index| 0 carries messages, the others carry puts.
  TcpStream(TcpTransport& transport, TcpEndpoint& endpoint, StreamSocket socket, size_t index);
  ~TcpStream();
  TcpStream(const TcpStream&) = delete;
  TcpStream& operator=(const TcpStream&) = delete;

  Status watch();
  void unwatch();
  // Closes the socket. Nothing more is read or written.
  void close();
  // Closes the stream like close(), but makes the kernel discard unsent data.
  void abort();
  bool is_bulk() const { return index_ > 0; }
  void on_events(uint32_t events) override;

  // Receives a bounded amount of data. Makes upcalls. Returns the number of actions.
  int receive();
  bool read_ended() const { return read_ended_; }
  // Returns whether receive() has data to deliver that no event will announce.
  bool buffered() const { return watched_ && socket_.buffered(); }
  // Returns the reader, for revoke().
  FrameReader& reader() { return reader_; }

  // Sends one message, or stores its rest if the socket is full. Returns kWouldBlock unless
  // output_idle(), and kPeerLost if the stream has broken.
  Code send_message(const MessageHeader& header, const ExtentView& payload);
  // Sends a frame without payload. Must be called only when output_idle().
  void send_head(const HeadBytes& head);
  // Sends the unfinished frame, then frames from |queue| if |new_frames|, until the socket is full
  // or a bounded amount is sent. Returns the number of actions.
  int write(BulkQueue& queue, bool new_frames, uint32_t max_frame);
  bool output_idle() const { return writer_.idle() && socket_.flushed(); }
  // Returns the number of bytes that were passed to the kernel and that the peer's kernel has not
  // acknowledged.
  uint64_t unacknowledged_bytes() const;
  // Returns whether the socket is full and the poller will report when it can be written again.
  bool parked() const { return parked_; }
  // Returns whether the socket was full at the last attempt to write.
  bool full() const { return full_; }
  // Makes the poller report when the full socket can be written again. Called before sleeping, or
  // when the socket has been full for long.
  void park();
  void detach(const Bulk& bulk) { writer_.detach(bulk); }
  void drop_output();

  // Records that a message was sent. The first message belongs to the opening of the connection,
  // which passage() does not count.
  void note_message() {
    if (!opened_) [[unlikely]]
      end_opening();
  }
  // Returns whether data that was sent after the opening has arrived. The result is final after
  // drop_output() or close().
  Passage passage() const;
  // Explains why data has not arrived, or returns an empty text if no reason is known.
  std::string trouble() const;

  // Checks in the kernel's statistics whether the path still works; see path.h.
  PathVerdict look(uint64_t now_ns, uint64_t detection_ns);
  bool awaits_acknowledgement() const { return path_.waiting(); }
  // Returns whether a receipt should be requested from the peer.
  bool in_doubt() const { return path_.in_doubt(); }
  StreamId id() const;
  void resolve(const PathReceipt& receipt) { path_.answered(receipt); }
  uint64_t silent_ns() const { return path_.silent_ns(); }

  int fd() const { return socket_.get(); }

  // The number of consecutive direct receives that found nothing. Only HotSet changes it.
  uint32_t misses = 0;

 private:
  Code send_small(const MessageHeader& header, const ExtentView& payload);
  Code send_pieces(const MessageHeader& header, const ExtentView& payload);
  Code finish_send(ssize_t sent, const HeadBytes& head, const ExtentView& payload);
  void note_full();
  void unpark();
  void end_reading(int error);
  int flush();
  void end_writing(int error);
  void end_opening();
  void keep_passage() {
    if (!last_passage_) last_passage_ = passage();
  }
  // Returns the number of bytes that the kernel has accepted so far.
  uint64_t accepted_bytes() const;

  TcpTransport& transport_;
  TcpEndpoint& endpoint_;
  StreamSocket socket_;
  const uint8_t index_;
  bool watched_ = false;
  bool read_ended_ = false;
  bool write_ended_ = false;
  bool full_ = false;
  bool parked_ = false;
  uint8_t full_count_ = 0;
  FrameReader reader_;
  FrameWriter writer_;
  PathWatch path_;
  bool probes_when_idle_ = false;
  bool opened_ = false;
  uint64_t opening_bytes_ = 0;
  std::optional<Passage> last_passage_;
};

}  // namespace hetcomm::tcp
