// From statuses of the C ABI to exceptions of torch's.
#pragma once

#include <exception>
#include <string>

#include <hetcomm/hetcomm.h>

namespace hetcomm::torch_backend {

// Throws c10::DistBackendError (a RuntimeError in Python) with |what| and the thread's last error.
[[noreturn]] void fail(const std::string& what, hetcomm_status_t status);

inline void check(const char* what, hetcomm_status_t status) {
  if (status != HETCOMM_OK) [[unlikely]]
    fail(what, status);
}

// Returns how |operation| ended, as an exception. The record's text must still be the thread's last
// one.
std::exception_ptr make_exception(const char* operation, const hetcomm_completion_t& completion);

}  // namespace hetcomm::torch_backend
