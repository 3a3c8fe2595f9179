// Wraps the C API of libhetcomm for the executor: statuses become Status, and handles have owners.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include <hetcomm/hetcomm.h>

#include "src/base/status.h"
#include "src/base/text.h"

namespace hetcomm::pipeline {

// Makes a status with |text|. Without memory for the text it has the code alone.
inline Status failure_of(hetcomm_status_t status, const char* text) noexcept {
  const auto code = static_cast<Code>(status);
  return *text == '\0' ? Status(code) : status_or_code(code, [&] { return std::string(text); });
}

// Returns the status of a call of libhetcomm that has just returned |status| in this thread.
inline Status of_call(hetcomm_status_t status) noexcept {
  return status == HETCOMM_OK ? Status() : failure_of(status, hetcomm_last_error());
}

// Returns how an operation ended.
inline Status of_operation(const hetcomm_completion_t& completion) noexcept {
  return completion.status == HETCOMM_OK ? Status()
                                         : failure_of(completion.status, completion.text);
}

// Waits for the operation, which ends at its own deadline at the latest. |request| is nullptr
// afterwards, unless the wait itself has failed, as when |timeout_ns| has passed.
inline Status wait_and_clear(hetcomm_request_t*& request, uint64_t timeout_ns) {
  hetcomm_completion_t completion;
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_request_wait(request, timeout_ns, &completion)));
  request = nullptr;
  return of_operation(completion);
}
// Returns whether the operation has ended. |request| is nullptr afterwards if it has.
inline Result<bool> test_and_clear(hetcomm_request_t*& request) {
  hetcomm_completion_t completion;
  const hetcomm_status_t status = hetcomm_request_test(request, &completion);
  if (status == HETCOMM_PENDING) return false;
  HETCOMM_RETURN_IF_ERROR(of_call(status));
  request = nullptr;
  HETCOMM_RETURN_IF_ERROR(of_operation(completion));
  return true;
}
// Waits a little before another attempt to get memory, since nothing tells when there is some.
inline void wait_for_memory() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

// Waits until the operation has ended and no longer uses its memory. |request| is nullptr
// afterwards.
inline Status wait(hetcomm_request_t*& request) {
  while (true) {
    Status ended = wait_and_clear(request, HETCOMM_TIMEOUT_INFINITE);
    // A wait that runs out of memory leaves the operation as it is.
    if (request == nullptr || ended.code() != Code::kOutOfMemory) return ended;
    wait_for_memory();
  }
}
// Waits for the operation, if there is one, and ignores its status.
inline void drain(hetcomm_request_t*& request) {
  if (request != nullptr) static_cast<void>(wait(request));
  request = nullptr;
}

// Returns a failure with the text of |make| before its own. Without memory for a text, and on
// success, |status| is unchanged.
template <typename Make>
Status annotated(const Status& status, Make&& make) noexcept {
  if (status.ok()) return status;
  const std::string what = text_or_none(make);
  return what.empty() ? status : status.annotate(what);
}

// Returns what |body| returns, or a failure for an exception.
template <typename Body>
Status status_of(Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Code::kOutOfMemory;
  } catch (const std::exception& exception) {
    return failure_of(HETCOMM_INTERNAL, exception.what());
  }
}

// Destroys a handle that nothing uses any more. A refusal leaks the handle: nobody could do
// anything about it.
struct Destroyer {
  void operator()(hetcomm_communicator_t* handle) const {
    static_cast<void>(hetcomm_communicator_destroy(handle));
  }
  void operator()(hetcomm_layout_t* handle) const {
    static_cast<void>(hetcomm_layout_destroy(handle));
  }
  void operator()(hetcomm_memory_t* handle) const {
    static_cast<void>(hetcomm_memory_destroy(handle));
  }
  void operator()(hetcomm_reshard_t* handle) const {
    static_cast<void>(hetcomm_reshard_destroy(handle));
  }
};
using OwnedCommunicator = std::unique_ptr<hetcomm_communicator_t, Destroyer>;
using OwnedLayout = std::unique_ptr<hetcomm_layout_t, Destroyer>;
using OwnedMemory = std::unique_ptr<hetcomm_memory_t, Destroyer>;
using OwnedReshard = std::unique_ptr<hetcomm_reshard_t, Destroyer>;

}  // namespace hetcomm::pipeline
