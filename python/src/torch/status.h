// Converts status codes of the C ABI to PyTorch exceptions.
#pragma once

#include <c10/util/Exception.h>
#include <exception>
#include <string>

#include <hetcomm/hetcomm.h>

namespace hetcomm::torch_backend {

// Throws c10::DistBackendError (a RuntimeError in Python) with |what| and the thread's last error.
[[noreturn]] void fail(const std::string& what, hetcomm_status_t status);

// Throws c10::DistBackendError with DEVICE_LOST and the text of |error|, a PyTorch exception about
// a device.
[[noreturn]] void fail_of_device(const char* operation, const c10::Error& error);

inline void check(const char* what, hetcomm_status_t status) {
  if (status != HETCOMM_OK) [[unlikely]]
    fail(what, status);
}

// Returns the result of |call|. Rethrows a PyTorch exception about a failed device as DEVICE_LOST
// in |operation|. Exceptions about incorrect use pass unchanged.
template <typename Call>
auto translated(const char* operation, Call&& call) {
  try {
    return call();
  } catch (const c10::DistBackendError&) {
    throw;
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::Error& error) {
    fail_of_device(operation, error);
  }
}

// Makes an exception for the failure of |operation|. |completion|.text must still be valid: it is
// borrowed until this thread's next hetcomm call.
std::exception_ptr make_exception(const char* operation, const hetcomm_completion_t& completion);

}  // namespace hetcomm::torch_backend
