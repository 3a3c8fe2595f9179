#include "transports/self/endpoint.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "src/base/free_index.h"
#include "transports/self/transport.h"

namespace hetcomm::self {
namespace {

// One progress() copies at most this many bytes of puts and gets.
constexpr uint64_t kCopyBudget = 512 << 10;

// The words of Bulk::scratch: the number of bytes done, and whether the bulk is a put.
constexpr size_t kDone = 0;
constexpr size_t kIsPut = 1;

// Iterates over the pieces of an extent list, beginning at byte |offset|.
class Walker {
 public:
  Walker(Extents extents, uint64_t offset) : extents_(extents), within_(offset) { skip(); }
  std::byte* at() const { return static_cast<std::byte*>(extents_[index_].iov_base) + within_; }
  uint64_t left_here() const { return extents_[index_].iov_len - within_; }
  void advance(uint64_t length) {
    within_ += length;
    skip();
  }

 private:
  void skip() {
    for (; index_ < extents_.size() && within_ >= extents_[index_].iov_len; ++index_) {
      within_ -= extents_[index_].iov_len;
    }
  }
  Extents extents_;
  size_t index_ = 0;
  uint64_t within_;
};

// Copies |length| bytes between two extent lists, both of which must be long enough.
void copy(Extents to, uint64_t to_offset, Extents from, uint64_t from_offset, uint64_t length) {
  Walker target(to, to_offset);
  Walker source(from, from_offset);
  while (length > 0) {
    const uint64_t piece = std::min({length, target.left_here(), source.left_here()});
    std::memmove(target.at(), source.at(), piece);
    target.advance(piece);
    source.advance(piece);
    length -= piece;
  }
}

}  // namespace

SelfEndpoint::SelfEndpoint(SelfTransport& transport) : transport_(transport) {
  transport_.add(*this);
}

SelfEndpoint::~SelfEndpoint() { transport_.remove(*this); }

const Capabilities& SelfEndpoint::capabilities() const { return transport_.capabilities(); }

Code SelfEndpoint::send(const MessageHeader& header, const ExtentView& payload) {
  const uint32_t most = capabilities().max_payload_bytes;
  if (payload.length > most) return Code::kInvalidArgument;
  if (head_ - tail_ == kSlots) {
    want_room_ = true;
    return Code::kWouldBlock;
  }
  Slot& slot = slots_[head_ % kSlots];
  if (payload.length > 0) {
    if (!slot.payload) slot.payload.reset(new (std::nothrow) std::byte[most]);
    if (!slot.payload) return Code::kOutOfMemory;
    gather(payload.extents, payload.offset, ByteSpan(slot.payload.get(), payload.length));
  }
  slot.header = header;
  slot.length = static_cast<uint32_t>(payload.length);
  ++head_;
  return Code::kOk;
}

// --- exposure --------------------------------------------------------------------------------

Result<RemoteKey> SelfEndpoint::expose(Extents extents, Access access, uint64_t cookie) {
  const uint32_t index = next_free_index(exposures_, free_);
  Exposure& exposure = exposures_[index];
  exposure.extents.assign(extents.begin(), extents.end());
  free_.pop_back();  // takes the slot only now; nothing below can fail
  exposure.total = total_bytes(extents);
  exposure.cookie = cookie;
  exposure.access = access;
  ++exposure.generation;
  exposure.live = true;
  return RemoteKey{{static_cast<uint64_t>(exposure.generation) << 32 | (index + 1),
                    static_cast<uint64_t>(access), 0}};
}

SelfEndpoint::Exposure* SelfEndpoint::find(const RemoteKey& key) {
  const uint32_t index = static_cast<uint32_t>(key.words[0]) - 1;
  if (index >= exposures_.size()) return nullptr;
  Exposure& exposure = exposures_[index];
  const bool same = exposure.live && exposure.generation == key.words[0] >> 32 &&
                    static_cast<uint64_t>(exposure.access) == key.words[1];
  return same ? &exposure : nullptr;
}

void SelfEndpoint::revoke(const RemoteKey& key) {
  Exposure* const exposure = find(key);
  if (exposure == nullptr) return;
  exposure->live = false;
  free_.push_back(static_cast<uint32_t>(key.words[0]) - 1);
}

// --- bulks -----------------------------------------------------------------------------------

Code SelfEndpoint::accept(Bulk& bulk, Access access) {
  if (bulk.key.words[1] != static_cast<uint64_t>(access)) return Code::kInvalidArgument;
  if (const Exposure* const exposure = find(bulk.key);
      exposure != nullptr && (bulk.remote_offset > exposure->total ||
                              bulk.local.length > exposure->total - bulk.remote_offset)) {
    return Code::kInvalidArgument;
  }
  bulk.scratch[kDone] = 0;
  bulk.scratch[kIsPut] = access == Access::kPutTarget ? 1 : 0;
  bulk.next = nullptr;
  List& list = lists_[bulk.high_priority ? 0 : 1];
  (list.head == nullptr ? list.head : list.tail->next) = &bulk;
  list.tail = &bulk;
  return Code::kOk;
}

Code SelfEndpoint::put(Bulk& bulk) { return accept(bulk, Access::kPutTarget); }
Code SelfEndpoint::get(Bulk& bulk) { return accept(bulk, Access::kGetSource); }
bool SelfEndpoint::cancel(Bulk& bulk) {
  remove(bulk);
  return false;
}

void SelfEndpoint::remove(Bulk& bulk) {
  List& list = lists_[bulk.high_priority ? 0 : 1];
  Bulk* previous = nullptr;
  for (Bulk* at = list.head; at != nullptr; previous = at, at = at->next) {
    if (at != &bulk) continue;
    (previous == nullptr ? list.head : previous->next) = bulk.next;
    if (list.tail == &bulk) list.tail = previous;
    return;
  }
}

void SelfEndpoint::copy_step(Bulk& bulk, uint64_t most) {
  Exposure* const exposure = find(bulk.key);
  const bool is_put = bulk.scratch[kIsPut] != 0;
  if (exposure == nullptr) {
    // The memory was revoked. A get must report that, and the bytes of a put are dropped.
    remove(bulk);
    handler_->on_bulk_complete(bulk, is_put ? Code::kOk : Code::kCancelled);
    return;
  }
  const uint64_t done = bulk.scratch[kDone];
  const uint64_t length = std::min(most, bulk.local.length - done);
  const uint64_t there = bulk.remote_offset + done;
  const uint64_t here = bulk.local.offset + done;
  if (is_put) {
    copy(exposure->extents, there, bulk.local.extents, here, length);
  } else {
    copy(bulk.local.extents, here, exposure->extents, there, length);
  }
  bulk.scratch[kDone] = done + length;
  if (done + length < bulk.local.length) return;
  remove(bulk);
  const RemoteKey key = bulk.key;
  const uint64_t total = bulk.local.length;
  handler_->on_bulk_complete(bulk, Code::kOk);
  // The upcall may have revoked the target.
  const Exposure* const target = is_put ? find(key) : nullptr;
  if (target != nullptr) handler_->on_put(target->cookie, total);
}

// --- progress --------------------------------------------------------------------------------

int SelfEndpoint::deliver_messages() {
  int done = 0;
  // Messages that a handler sends here are delivered by the next call.
  for (const uint64_t end = head_; tail_ != end; ++done) {
    Slot& slot = slots_[tail_ % kSlots];
    const MessageHeader header = slot.header;
    handler_->on_message(header, ConstByteSpan(slot.payload.get(), slot.length));
    ++tail_;
  }
  return done;
}

int SelfEndpoint::copy_bulks() {
  int done = 0;
  for (uint64_t left = kCopyBudget; left > 0 && has_bulks(); ++done) {
    Bulk& bulk = *(lists_[0].head != nullptr ? lists_[0].head : lists_[1].head);
    const uint64_t step = std::min(left, bulk.local.length - bulk.scratch[kDone]);
    // Every step counts as at least 4 KiB, so that many small bulks also exhaust the budget.
    left -= std::min(left, std::max<uint64_t>(step, 4096));
    copy_step(bulk, step);
  }
  return done;
}

int SelfEndpoint::progress() {
  if (handler_ == nullptr) return 0;
  int done = deliver_messages();
  if (want_room_ && head_ - tail_ < kSlots) {
    want_room_ = false;
    handler_->on_writable();
    ++done;
  }
  return done + copy_bulks();
}

}  // namespace hetcomm::self
