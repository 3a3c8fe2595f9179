// Wraps the C API of libhetcomm for the executor: status codes become Status, and handles get
// owners.
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

// Makes a status with |text|. If there is no memory for the text, the status has only the code.
inline Status failure_of(hetcomm_status_t status, const char* text) noexcept {
  const auto code = static_cast<Code>(status);
  return *text == '\0' ? Status(code) : status_or_code(code, [&] { return std::string(text); });
}

// Returns the Status for |status|, which a call of libhetcomm has just returned in this thread.
inline Status of_call(hetcomm_status_t status) noexcept {
  return status == HETCOMM_OK ? Status() : failure_of(status, hetcomm_last_error());
}

// Returns the Status with which an operation has ended.
inline Status of_operation(const hetcomm_completion_t& completion) noexcept {
  return completion.status == HETCOMM_OK ? Status()
                                         : failure_of(completion.status, completion.text);
}

// Waits for the operation, which ends at its own deadline at the latest. Sets |request| to nullptr,
// unless the wait itself fails, for example because |timeout_ns| has passed.
inline Status wait_and_clear(hetcomm_request_t*& request, uint64_t timeout_ns) {
  hetcomm_completion_t completion;
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_request_wait(request, timeout_ns, &completion)));
  request = nullptr;
  return of_operation(completion);
}
// Returns whether the operation has ended. If it has, sets |request| to nullptr, and if it has
// failed, returns its failure.
inline Result<bool> test_and_clear(hetcomm_request_t*& request) {
  hetcomm_completion_t completion;
  const hetcomm_status_t status = hetcomm_request_test(request, &completion);
  if (status == HETCOMM_PENDING) return false;
  HETCOMM_RETURN_IF_ERROR(of_call(status));
  request = nullptr;
  HETCOMM_RETURN_IF_ERROR(of_operation(completion));
  return true;
}
// Sleeps before another attempt to allocate memory, since there is no notification when memory
// becomes available.
inline void wait_for_memory() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

// Waits until the operation has ended and no longer uses its memory. Then sets |request| to
// nullptr.
inline Status wait(hetcomm_request_t*& request) {
  while (true) {
    Status ended = wait_and_clear(request, HETCOMM_TIMEOUT_INFINITE);
    // A wait that runs out of memory does not affect the operation.
    if (request == nullptr || ended.code() != Code::kOutOfMemory) return ended;
    wait_for_memory();
  }
}
// Waits for the operation, if there is one, and ignores its status. Sets |request| to nullptr.
inline void drain(hetcomm_request_t*& request) {
  if (request != nullptr) static_cast<void>(wait(request));
  request = nullptr;
}

// Returns |status| with the text of |make| in front of its own text. Returns it unchanged on
// success, or if there is no memory for a text.
template <typename Make>
Status annotated(const Status& status, Make&& make) noexcept {
  if (status.ok()) return status;
  const std::string what = text_or_none(make);
  return what.empty() ? status : status.annotate(what);
}

// Returns the result of |body|, or a failure if it throws.
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

// Destroys a handle that is no longer used. If the call is refused, the handle leaks, because the
// caller could not handle the error.
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
