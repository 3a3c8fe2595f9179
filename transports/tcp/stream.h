// One socket of a connection: reads frames into their places, writes frames from theirs.
//
// It is registered for EPOLLIN while it can be read, and for EPOLLOUT only while it is parked. It
// is parked when the socket was full for so long that asking it again and again is a waste, or when
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
  // |index| 0 carries messages, others puts.
  TcpStream(TcpTransport& transport, TcpEndpoint& endpoint, StreamSocket socket, size_t index);
  ~TcpStream();
  TcpStream(const TcpStream&) = delete;
  TcpStream& operator=(const TcpStream&) = delete;

  Status watch();
  void unwatch();
  // Ends all reading and writing.
  void close();
  // Does the same as close(), and the kernel drops unsent data.
  void abort();
  bool is_bulk() const { return index_ > 0; }
  void on_events(uint32_t events) override;

  // Takes a bounded amount of the data that has arrived. Makes upcalls. Returns the number of
  // things done.
  int receive();
  bool read_ended() const { return read_ended_; }
  // receive() has something to take that no event announces.
  bool buffered() const { return watched_ && socket_.buffered(); }
  // The reader, for revoke.
  FrameReader& reader() { return reader_; }

  // Sends one message, or keeps it when the socket is full. kWouldBlock between the parts of a
  // frame.
  Code send_message(const MessageHeader& header, const ExtentView& payload);
  // Sends a frame without payload. Only valid when output_idle().
  void send_head(const HeadBytes& head);
  // Sends the unfinished frame, then frames of |queue| if |new_frames|, as far as the socket takes
  // them, a bounded amount. Returns the number of things done.
  int write(BulkQueue& queue, bool new_frames, uint32_t max_frame);
  bool output_idle() const { return writer_.idle() && socket_.flushed(); }
  // Bytes that the kernel has taken, and that the peer's kernel has not acknowledged.
  uint64_t unacknowledged_bytes() const;
  // True: the socket is full, and the poller reports when it no longer is.
  bool parked() const { return parked_; }
  // True: the socket was full when it was last asked.
  bool full() const { return full_; }
  // Call before sleeping when the socket is full.
  void park();
  void detach(const Bulk& bulk) { writer_.detach(bulk); }
  void drop_output();

  // A message has left. The first one belongs to the opening of the connection.
  void note_message() {
    if (!opened_) [[unlikely]]
      end_opening();
  }
  // Returns how far the data after the opening has come. It is final after drop_output() or
  // close().
  Passage passage() const;
  // Says why the data has not arrived; empty: no reason is known.
  std::string trouble() const;

  // Judges by the kernel's account whether the path still works; see path.h.
  PathVerdict look(uint64_t now_ns, uint64_t detection_ns);
  bool awaits_acknowledgement() const { return path_.waiting(); }
  // True: the peer should be asked.
  bool in_doubt() const { return path_.in_doubt(); }
  StreamId id() const;
  void resolve(const PathReceipt& receipt) { path_.answered(receipt); }
  uint64_t silent_ns() const { return path_.silent_ns(); }

  int fd() const { return socket_.get(); }

  // Consecutive times that a direct receive found nothing; for the hot set.
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
  // Bytes that the kernel has taken since the beginning.
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
