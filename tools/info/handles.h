// Owns the library's handles, and reports failed calls in one format.
#pragma once

#include <cstdio>
#include <memory>

#include <hetcomm/hetcomm.h>

namespace hetcomm_info {

// Exit statuses of the tool.
constexpr int kSuccess = 0;
constexpr int kFailure = 1;
constexpr int kUsage = 2;

// Prints "hetcomm_info: what: STATUS: detail" on standard error.
inline void report_failure(const char* what, hetcomm_status_t status) {
  std::fprintf(stderr, "hetcomm_info: %s: %s: %s\n", what, hetcomm_status_name(status),
               hetcomm_last_error());
}

// Destroys a handle. A failure is printed, but does not change the exit status.
struct Destroy {
  void operator()(hetcomm_context_t* context) const {
    const hetcomm_status_t status = hetcomm_context_destroy(context);
    if (status != HETCOMM_OK) report_failure("hetcomm_context_destroy", status);
  }
  void operator()(hetcomm_bootstrap_t* bootstrap) const { hetcomm_bootstrap_destroy(bootstrap); }
  void operator()(hetcomm_communicator_t* communicator) const {
    const hetcomm_status_t status = hetcomm_communicator_destroy(communicator);
    if (status != HETCOMM_OK) report_failure("hetcomm_communicator_destroy", status);
  }
};

using Context = std::unique_ptr<hetcomm_context_t, Destroy>;
using Bootstrap = std::unique_ptr<hetcomm_bootstrap_t, Destroy>;
using Communicator = std::unique_ptr<hetcomm_communicator_t, Destroy>;

// Creates a context. If the library rejects the environment or |settings|, prints the reason on
// standard error and returns null.
inline Context create_context(const char* settings = nullptr) {
  hetcomm_context_t* context = nullptr;
  hetcomm_context_options_t options{};
  options.struct_size = sizeof(options);
  options.settings = settings;
  const hetcomm_status_t status = hetcomm_context_create(&options, &context);
  if (status != HETCOMM_OK) report_failure("hetcomm_context_create", status);
  return Context(context);
}

}  // namespace hetcomm_info
