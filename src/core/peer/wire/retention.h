// Retention keeps copies of the messages sent on a connection that may lose messages while the peer
// lives. A copy is kept until the peer has acknowledged the message, and can be sent again on the
// next connection. The copies are stored in one ring buffer that grows. Space is reserved before a
// message is sent, because a message that was sent cannot be recalled.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/core/peer/wire/wire.h"

namespace hetcomm {

class Retention {
 public:
  // Reserves space for a message with |length| bytes of payload. May throw std::bad_alloc.
  void make_room(uint64_t length) HETCOMM_UNDER_BATON {
    const uint64_t used = end_ - begin_;
    const uint64_t more = sizeof(Record) + length;
    if (used + more <= ring_.size()) return;
    size_t size = ring_.empty() ? 4096 : ring_.size();
    while (size < used + more) size *= 2;
    std::vector<std::byte> bigger(size);
    copy_out(begin_, bigger.data(), used);
    ring_.swap(bigger);
    begin_ = 0;
    end_ = used;
  }

  // Keeps a copy of a message. Requires make_room().
  void push(const WireHeader& header, const ExtentView& payload) HETCOMM_UNDER_BATON {
    const Record record{header, payload.length};
    append(&record, sizeof(record));
    for_each_piece(payload.extents, payload.offset, payload.length,
                   [this](const std::byte* piece, size_t length)
                       HETCOMM_UNDER_BATON { append(piece, length); });
    ++count_;
  }

  // Drops everything up to and including |sequence|.
  void acknowledge(uint32_t sequence) HETCOMM_UNDER_BATON {
    while (count_ > 0) {
      const Record record = read_record(begin_);
      if (static_cast<int32_t>(record.header.sequence - sequence) > 0) break;
      begin_ += sizeof(Record) + record.length;
      --count_;
    }
    if (count_ == 0) begin_ = end_ = 0;
  }

  // Calls |use(const WireHeader&, ConstByteSpan payload)| in order for the messages after
  // |sequence|, until it returns false. Returns whether every call returned true.
  template <typename Use>
  bool replay(uint32_t sequence, Use&& use) const HETCOMM_UNDER_BATON {
    uint64_t at = begin_;
    std::vector<std::byte> payload;
    for (size_t i = 0; i < count_; ++i) {
      const Record record = read_record(at);
      if (static_cast<int32_t>(record.header.sequence - sequence) > 0) {
        payload.resize(record.length);
        copy_out(at + sizeof(Record), payload.data(), record.length);
        if (!use(record.header, ConstByteSpan(payload))) return false;
      }
      at += sizeof(Record) + record.length;
    }
    return true;
  }

  // Returns the payload size of the largest kept message, in bytes.
  uint64_t largest() const HETCOMM_UNDER_BATON {
    uint64_t most = 0;
    uint64_t at = begin_;
    for (size_t i = 0; i < count_; ++i) {
      const Record record = read_record(at);
      most = std::max(most, record.length);
      at += sizeof(Record) + record.length;
    }
    return most;
  }
  bool empty() const HETCOMM_UNDER_BATON { return count_ == 0; }
  size_t count() const HETCOMM_UNDER_BATON { return count_; }
  uint64_t bytes() const HETCOMM_UNDER_BATON { return end_ - begin_; }

 private:
  struct Record {
    WireHeader header;
    uint64_t length;
  };

  void append(const void* source, uint64_t length) HETCOMM_UNDER_BATON {
    const uint64_t mask = ring_.size() - 1;
    const uint64_t at = end_ & mask;
    const uint64_t first = std::min<uint64_t>(length, ring_.size() - at);
    copy_bytes(ring_.data() + at, source, first);
    if (first < length) [[unlikely]] {
      std::memcpy(ring_.data(), static_cast<const std::byte*>(source) + first, length - first);
    }
    end_ += length;
  }
  void copy_out(uint64_t from, void* target, uint64_t length) const HETCOMM_UNDER_BATON {
    if (length == 0) return;
    const uint64_t mask = ring_.size() - 1;
    const uint64_t at = from & mask;
    const uint64_t first = std::min<uint64_t>(length, ring_.size() - at);
    std::memcpy(target, ring_.data() + at, first);
    std::memcpy(static_cast<std::byte*>(target) + first, ring_.data(), length - first);
  }
  Record read_record(uint64_t at) const HETCOMM_UNDER_BATON {
    Record record;
    const uint64_t start = at & (ring_.size() - 1);
    if (sizeof(record) <= ring_.size() - start) [[likely]] {
      std::memcpy(&record, ring_.data() + start, sizeof(record));
    } else {
      copy_out(at, &record, sizeof(record));
    }
    return record;
  }

  std::vector<std::byte> ring_;  // its size is a power of two
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  size_t count_ = 0;
};

}  // namespace hetcomm
