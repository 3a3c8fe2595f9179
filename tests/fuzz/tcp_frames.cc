// Fuzz target: the frame decoder of a tcp stream from an authenticated but hostile peer.
//
// The input is a script: heads of all types with fields from the input, raw bytes, and calls that
// core makes between receives (expose, revoke). The bytes are split into receives at random. Some
// memory is exposed, and upcalls revoke and expose too, so that the decoder meets tokens of every
// state in each of its own states. Checked: no write outside of exposed memory (by guard bytes and
// the sanitizers), no write after a revoke, no upcall with more bytes than were sent, and a decoder
// that has not failed asks for at least one byte.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "transports/tcp/buffer_pool.h"
#include "transports/tcp/exposure.h"
#include "transports/tcp/frame_reader.h"

namespace hetcomm {
namespace {

using tcp::PutTarget;

constexpr std::byte kGuard{0xa5};

void require(bool condition) {
  if (!condition) std::abort();
}

class Target final : public tcp::FrameSink {
 public:
  explicit Target(bool bulk_stream)
      : memory_(600, kGuard), reader(*this, exposures_, buffers_, bulk_stream) {
    // Three pieces with guards between them, and one exposure that is revoked immediately.
    extents_ = {{memory_.data() + 50, 100}, {memory_.data() + 200, 0}, {memory_.data() + 250, 300}};
    old_ = expose();
    revoke(old_);
    live_ = expose();
  }

  void on_message_frame(const MessageHeader& /*header*/, ConstByteSpan payload) override {
    require(payload.size() <= tcp::kMaxMessageBytes);
    received_ += payload.size();
    // Core may do this in any upcall.
    if (payload.size() % 7 == 3) renew();
  }
  void on_put_frame(uint64_t /*cookie*/, uint64_t length) override {
    require(length <= 400);
    received_ += length;
    if (length % 5 == 2) revoke(live_);
  }
  const char* on_streams_frame(const tcp::StreamsNote& note) override {
    return note.count > 4 ? "too many" : nullptr;
  }

  PutTarget target(bool old, uint64_t offset) const {
    return tcp::put_target(old ? old_ : live_, offset);
  }
  void renew() {
    revoke(live_);
    old_ = std::exchange(live_, expose());
  }
  void end_access() { revoke(live_); }
  void check(size_t sent) const {
    require(received_ <= sent);
    if (frozen_) require(memory_ == frozen_memory_);
    for (size_t i = 0; i < memory_.size(); ++i) {
      const bool exposed = (i >= 50 && i < 150) || (i >= 250 && i < 550);
      require(exposed || memory_[i] == kGuard);
    }
  }

 private:
  RemoteKey expose() {
    frozen_ = false;
    Result<RemoteKey> key = exposures_.add(extents_, 1, nonces_);
    require(key.ok());
    return *key;
  }
  void revoke(const RemoteKey& key) {
    const uint32_t slot = exposures_.remove(key);
    if (slot == tcp::ExposureTable::kNone) return;
    reader.revoke(slot);
    // Nothing else is exposed: from now on the memory must not change.
    frozen_ = true;
    frozen_memory_ = memory_;
  }

  std::vector<std::byte> memory_;
  std::vector<iovec> extents_;
  tcp::ExposureTable exposures_;
  tcp::BufferPool buffers_;
  tcp::NonceSource nonces_;
  RemoteKey live_;
  RemoteKey old_;
  bool frozen_ = false;
  std::vector<std::byte> frozen_memory_;
  uint64_t received_ = 0;

 public:
  tcp::FrameReader reader;
};

// Reads the script. Returns zero at its end.
class Script {
 public:
  Script(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool ended() const { return at_ >= size_; }
  uint32_t byte() { return ended() ? 0 : data_[at_++]; }
  uint32_t word() {
    const uint32_t high = byte();
    return high << 8 | byte();
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

// Feeds a decoder with receives of random size.
class Feeder {
 public:
  explicit Feeder(Target& target) : target_(target), ahead_(128u << 10), iov_(64) {}
  // Returns false after the decoder has refused input.
  bool feed(const std::byte* data, size_t size) {
    while (size > 0) {
      const Pieces pieces = target_.reader.next_io(ahead_, iov_);
      require(pieces.count >= 1 && pieces.bytes >= 1);
      cuts_ = cuts_ * 1103515245u + 12345u;
      const size_t received = std::min<size_t>({size, pieces.bytes, 1 + (cuts_ >> 16) % 97});
      for (size_t i = 0, left = received; left > 0; ++i) {
        require(i < pieces.count);
        const size_t part = std::min(left, iov_[i].iov_len);
        std::memcpy(iov_[i].iov_base, data, part);
        data += part;
        left -= part;
      }
      size -= received;
      sent_ += received;
      const char* error = target_.reader.accept(ahead_, received);
      target_.check(sent_);
      if (error != nullptr) return false;
    }
    return true;
  }

 private:
  Target& target_;
  std::vector<std::byte> ahead_;
  std::vector<iovec> iov_;
  uint32_t cuts_ = 1;
  size_t sent_ = 0;
};

// Returns one head, or payload bytes that an earlier head has announced.
std::vector<std::byte> next_bytes(Script& script, const Target& target) {
  tcp::HeadBytes head{};
  uint32_t payload = 0;
  switch (script.byte() % 8) {
    case 0:
      payload = script.word() % 1000;
      tcp::encode_message_head(head, {}, payload);
      break;
    case 1:
    case 2: {
      const uint64_t offset = script.word() % 420;
      payload = script.word() % 420;
      tcp::encode_put_head(head, target.target(false, offset), payload);
      break;
    }
    case 3:
      payload = script.byte();
      tcp::encode_put_head(head, target.target(true, script.byte()), payload);
      break;
    case 4:
      tcp::encode_streams_head(head, {.kind = tcp::StreamsNote::Kind::kWanted,
                                      .count = static_cast<uint8_t>(script.byte() % 16)});
      break;
    case 5:  // a head with one byte wrong
      tcp::encode_put_head(head, target.target(false, 0), 10);
      head[script.byte() % head.size()] = static_cast<std::byte>(script.byte());
      break;
    case 6:  // arbitrary bytes
      for (std::byte& byte : head) byte = static_cast<std::byte>(script.byte());
      break;
    default:
      return std::vector<std::byte>(script.byte());
  }
  std::vector<std::byte> bytes(head.begin(), head.end());
  // Often the frame is left unfinished, so that the calls occur in the middle of a frame.
  bytes.resize(bytes.size() + (script.byte() % 2 == 0 ? payload : payload / 2), std::byte{0x3c});
  return bytes;
}

}  // namespace
}  // namespace hetcomm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hetcomm;
  Script script(data, size);
  Target target(script.byte() % 2 == 0);
  Feeder feeder(target);
  while (!script.ended()) {
    const uint32_t call = script.byte() % 8;
    if (call == 0) target.renew();
    if (call == 1) target.end_access();
    const std::vector<std::byte> bytes = next_bytes(script, target);
    if (!feeder.feed(bytes.data(), bytes.size())) break;
  }
  return 0;
}
