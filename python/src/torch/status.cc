#include "python/src/torch/status.h"

#include <c10/util/Exception.h>

namespace hetcomm::torch_backend {
namespace {

std::string describe(const std::string& what, hetcomm_status_t status, const char* detail) {
  std::string text = "hetcomm: " + what + ": ";
  // Programs recognize a timeout by these words, which other backends also use.
  if (status == HETCOMM_TIMED_OUT) text += "Timed out waiting: ";
  text += detail != nullptr && detail[0] != '\0' ? detail : hetcomm_status_text(status);
  return text + " [" + hetcomm_status_name(status) + "]";
}

}  // namespace

void fail(const std::string& what, hetcomm_status_t status) {
  C10_THROW_ERROR(DistBackendError, describe(what, status, hetcomm_last_error()));
}

void fail_of_device(const char* operation, const c10::Error& error) {
  C10_THROW_ERROR(DistBackendError,
                  describe(operation, HETCOMM_DEVICE_LOST, error.what_without_backtrace()));
}

std::exception_ptr make_exception(const char* operation, const hetcomm_completion_t& completion) {
  try {
    C10_THROW_ERROR(DistBackendError, describe(operation, completion.status, completion.text));
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace hetcomm::torch_backend
