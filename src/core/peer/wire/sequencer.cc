#include "src/core/peer/wire/sequencer.h"

#include "src/base/baton_role.h"

namespace hetcomm {

Code Sequencer::replay(Rail& rail) {
  Code code = Code::kOk;
  retention_.replay(replayed_, [&](WireHeader header, ConstByteSpan payload) HETCOMM_UNDER_BATON {
    const uint32_t sequence = header.sequence;
    // Only the credit is updated. A newer acknowledgement could cover operations whose refusals
    // follow this message.
    header.credit = receive_credit_.returned();
    iovec storage{const_cast<std::byte*>(payload.data()), payload.size()};
    code = rail.endpoint().send(encode_header(header),
                                ExtentView{Extents(&storage, 1), 0, payload.size()});
    if (code == Code::kOk) replayed_ = sequence;
    return code == Code::kOk;
  });
  if (code == Code::kOk) replaying_ = false;
  return code;
}

}  // namespace hetcomm
