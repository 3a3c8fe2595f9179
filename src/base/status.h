// Status and Result report failures inside the library.
//
// The code that detects an error also writes its text. Functions set their outputs only on success.
// Functions on the data path return a bare Code, which never allocates.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <hetcomm/status.h>

namespace hetcomm {

enum class [[nodiscard]] Code : int32_t{
    kOk = HETCOMM_OK,
    kPending = HETCOMM_PENDING,
    kInvalidArgument = HETCOMM_INVALID_ARGUMENT,
    kOutOfMemory = HETCOMM_OUT_OF_MEMORY,
    kTimedOut = HETCOMM_TIMED_OUT,
    kCancelled = HETCOMM_CANCELLED,
    kUnsupported = HETCOMM_UNSUPPORTED,
    kBusy = HETCOMM_BUSY,
    kStaleHandle = HETCOMM_STALE_HANDLE,
    kTruncated = HETCOMM_TRUNCATED,
    kOutOfRange = HETCOMM_OUT_OF_RANGE,
    kOutOfResources = HETCOMM_OUT_OF_RESOURCES,
    kPermissionDenied = HETCOMM_PERMISSION_DENIED,
    kNotFound = HETCOMM_NOT_FOUND,
    kForked = HETCOMM_FORKED,
    kInternal = HETCOMM_INTERNAL,
    kOutcomeUnknown = HETCOMM_OUTCOME_UNKNOWN,
    kPeerLost = HETCOMM_PEER_LOST,
    kAborted = HETCOMM_ABORTED,
    kBootstrapFailed = HETCOMM_BOOTSTRAP_FAILED,
    kMismatch = HETCOMM_MISMATCH,
    kUnreachable = HETCOMM_UNREACHABLE,
    kDeviceLost = HETCOMM_DEVICE_LOST,
    kContextFailed = HETCOMM_CONTEXT_FAILED,
    // A resource, such as a queue entry, is not available at the moment. The caller keeps the work
    // and is notified when to retry. This code never crosses the C ABI.
    kWouldBlock = 1000,
};

// Return the name of |code| without its prefix ("PEER_LOST"), and its one-line text. Both strings
// are in static storage.
const char* code_name(Code code);
const char* code_text(Code code);

// Status is a code and, for most failures, a text that names the operation, peer or transport.
// Copying a Status is cheap.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code) : code_(code) {}  // NOLINT(google-explicit-constructor)
  Status(Code code, std::string text)
      : code_(code), text_(std::make_shared<const std::string>(std::move(text))) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  // Returns the text, or the code's default text if none was given.
  std::string_view text() const { return text_ ? std::string_view(*text_) : code_text(code_); }
  // Returns the same failure with "what: " before its text. Returns success unchanged.
  Status annotate(std::string_view what) const;

 private:
  Code code_ = Code::kOk;
  std::shared_ptr<const std::string> text_;
};

// Result holds a value, or the status that explains why there is no value.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)
  Result(Code code) : status_(code) {}                   // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  T& operator*() & { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

// Returns whether a retry may succeed later. This is the case if memory or another resource was
// exhausted.
inline bool may_pass(const Status& status) {
  return status.code() == Code::kOutOfMemory || status.code() == Code::kOutOfResources;
}

// Returns a status with the code that corresponds to the errno |error| and the text "what:
// strerror(error)".
Status status_from_errno(int error, std::string_view what);
// Returns the status for a failure to start the thread |name|. If a resource limit may be the
// cause, the text names the limit to raise.
Status status_of_no_thread(std::string_view name, const std::system_error& error);

#define HETCOMM_RETURN_IF_ERROR(expression)                        \
  do {                                                             \
    if (::hetcomm::Status status_ = (expression); !status_.ok()) { \
      return status_;                                              \
    }                                                              \
  } while (false)

}  // namespace hetcomm
