#include "src/core/peer/matching/delivery.h"

#include <cstring>
#include <new>
#include <string>

#include <fmt/core.h>

#include "src/base/baton_role.h"
#include "src/base/copy.h"
#include "src/base/text.h"

namespace hetcomm {

// ToDevice copies an eager message into device memory, then completes the receive.
class Delivery::ToDevice final : public CopyHandler, public Mortal {
 public:
  ToDevice(Delivery& delivery, Operation& receive, ConstByteSpan bytes)
      : delivery_(delivery),
        receive_(receive),
        bytes_(delivery.blocks_, bytes.size()),
        length_(bytes.size()) {
    if (!bytes_) throw std::bad_alloc();
    copy_long(bytes_.get(), bytes.data(), bytes.size());
  }
  void start() HETCOMM_UNDER_BATON {
    delivery_.staging_.start(copy_, StreamDirection::kFromHost, receive_.buffers.pieces, 0,
                             bytes_.get(), length_, *this);
  }

 private:
  void on_copied(const Status& status) override HETCOMM_UNDER_BATON {
    if (!status.ok()) {
      bytes_.leave_to(delivery_.staging_.abandoned());
      delivery_.completer_.complete(receive_, status.code(),
                                    text_or_none([&] { return std::string(status.text()); }));
    } else {
      delivery_.complete_delivered(receive_);
    }
    delivery_.graveyard_.add(PoolPtr<ToDevice>(this, {&delivery_.blocks_}));
  }

  std::string copy_purpose() const override HETCOMM_UNDER_BATON { return describe(receive_); }

  Delivery& delivery_;
  Operation& receive_;
  PoolBytes bytes_;
  uint64_t length_;
  CopyJob copy_;
};

// Delivers a message that does not fit as a whole into one contiguous range of host memory.
void Delivery::deliver_rest(Operation& receive, ConstByteSpan bytes) {
  const uint64_t part = std::min<uint64_t>(bytes.size(), receive.length);
  if (part > 0) {
    if (!receive.buffers.on_host) {
      try {
        PoolPtr<ToDevice> copy = make_pooled<ToDevice>(blocks_, *this, receive, bytes.first(part));
        receive.phase = OperationPhase::kCopying;
        copy.release()->start();
      } catch (const std::bad_alloc&) {
        completer_.complete(receive, Code::kOutOfMemory);  // no copy has begun
      }
      return;
    }
    scatter(receive.extents(), 0, bytes.first(part));
  }
  complete_delivered(receive);
}

void Delivery::delivered(Operation& receive, int source, uint64_t tag, uint64_t length) {
  note_message(receive, source, tag, length);
  complete_delivered(receive);
}

void Delivery::complete_delivered(Operation& receive) {
  if (receive.outcome.bytes_sent > receive.length) {
    complete_truncated(receive);
  } else {
    completer_.complete(receive);
  }
}

void Delivery::complete_truncated(Operation& receive) {
  completer_.complete(receive, Code::kTruncated, text_or_none([&]() HETCOMM_UNDER_BATON {
                        return fmt::format("{}: the message has {} bytes", describe(receive),
                                           receive.outcome.bytes_sent);
                      }));
}

}  // namespace hetcomm
