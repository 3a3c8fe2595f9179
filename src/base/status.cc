#include "src/base/status.h"

#include <cerrno>
#include <cstring>
#include <system_error>

namespace hetcomm {

const char* code_name(Code code) {
  switch (static_cast<int32_t>(code)) {
#define HETCOMM_CASE(name, value, text) \
  case value:                           \
    return #name;
    HETCOMM_STATUS_MAP(HETCOMM_CASE)
#undef HETCOMM_CASE
    default:
      return "UNKNOWN";
  }
}

const char* code_text(Code code) {
  switch (static_cast<int32_t>(code)) {
#define HETCOMM_CASE(name, value, text) \
  case value:                           \
    return text;
    HETCOMM_STATUS_MAP(HETCOMM_CASE)
#undef HETCOMM_CASE
    default:
      return "unknown status";
  }
}

Status Status::annotate(std::string_view what) const {
  if (ok()) return *this;
  // If there is no memory for the longer text, the status is returned unchanged.
  try {
    std::string text(what);
    text += ": ";
    text += this->text();
    return Status(code_, std::move(text));
  } catch (const std::bad_alloc&) {
    return *this;
  }
}

Status status_from_errno(int error, std::string_view what) {
  Code code = Code::kInternal;
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOSPC:
    case EAGAIN:
    case EFBIG:
      code = Code::kOutOfResources;
      break;
    case ENOMEM:
      code = Code::kOutOfMemory;
      break;
    case EACCES:
    case EPERM:
      code = Code::kPermissionDenied;
      break;
    case EINVAL:
    case EADDRNOTAVAIL:
    case EADDRINUSE:
      code = Code::kInvalidArgument;
      break;
    // These errors concern a file or device that the user has named.
    case ENOENT:
    case ENOTDIR:
      code = Code::kNotFound;
      break;
    case ETIMEDOUT:
      code = Code::kTimedOut;
      break;
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
      code = Code::kPeerLost;
      break;
    case EOPNOTSUPP:
    case ENOSYS:
    case EAFNOSUPPORT:
      code = Code::kUnsupported;
      break;
    default:
      break;
  }
  std::string text(what);
  text += ": ";
  text += std::generic_category().message(error);
  if (error == EMFILE) text += "; raise the limit of open files (ulimit -n)";
  if (error == EFBIG) text += "; raise the limit of file sizes (ulimit -f)";
  return Status(code, std::move(text));
}

Status status_of_no_thread(std::string_view name, const std::system_error& error) {
  std::string text(name);
  text += ": no thread can be started: ";
  text += error.what();
  if (error.code().value() == EAGAIN) {
    text += "; raise the limit of processes (ulimit -u, or that of the container)";
  }
  return Status(Code::kOutOfResources, std::move(text));
}

}  // namespace hetcomm
