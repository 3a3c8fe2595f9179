#include "src/system/memory_file.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/core.h>

#include "src/system/write_signals.h"

namespace hetcomm {

Status check_file_size(uint64_t size_bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      size_bytes <= limit.rlim_cur) {
    return {};
  }
  return Status(Code::kOutOfResources,
                fmt::format("{} bytes of shared memory are a file to the kernel, and the limit of "
                            "file sizes is {} bytes; raise it (ulimit -f, RLIMIT_FSIZE)",
                            size_bytes, static_cast<uint64_t>(limit.rlim_cur)));
}

Result<UniqueFd> create_memory_file(const char* name, uint64_t size_bytes) {
  HETCOMM_RETURN_IF_ERROR(check_file_size(size_bytes));
  UniqueFd file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return status_from_errno(errno, "memfd_create");
  // Another thread may lower the limit after the check, and ftruncate() would then raise SIGXFSZ.
  const WriteSignals signals;
  if (ftruncate(file.get(), static_cast<off_t>(size_bytes)) != 0) {
    return status_from_errno(errno, "ftruncate");
  }
  return file;
}

}  // namespace hetcomm
