// Posting an operation through the C ABI: the checks and the wall that all data calls share.
#pragma once

#include "src/capi/guard.h"

namespace hetcomm::capi {

// Checks |arguments|, reads their options, and posts (or only prepares) the operation.
hetcomm_status_t post(Communicator* communicator, PostArguments arguments, bool prepared,
                      hetcomm_request_t** out_request) noexcept;
// The same for a handle that may be anything.
inline hetcomm_status_t post(hetcomm_communicator_t* communicator, const PostArguments& arguments,
                             bool prepared, hetcomm_request_t** out_request) noexcept {
  if (communicator == nullptr) return fail(Code::kInvalidArgument, "communicator is null");
  if (!is_good(communicator)) [[unlikely]] {
    return fail(Code::kInvalidArgument, "communicator was destroyed, or is no such handle");
  }
  return post(communicator->impl.get(), arguments, prepared, out_request);
}

}  // namespace hetcomm::capi
