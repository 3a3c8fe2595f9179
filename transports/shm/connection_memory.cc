#include "transports/shm/connection_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "src/system/memory_file.h"

namespace hetcomm::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Calls fallocate, and retries if a signal interrupts it. Returns errno, or 0 on success.
int allocate(int file, uint64_t offset, uint64_t length) {
  while (fallocate(file, 0, static_cast<off_t>(offset), static_cast<off_t>(length)) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

// Allocates memory through the mapping. Returns errno, or 0 on success.
int populate(std::byte* begin, uint64_t length) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto skipped = reinterpret_cast<uintptr_t>(begin) & (page - 1);
  while (madvise(begin - skipped, length + skipped, MADV_POPULATE_WRITE) != 0) {
    if (errno != EINTR && errno != EAGAIN) return errno;
  }
  return 0;
}

// Returns whether the kernel supports MADV_POPULATE_WRITE. A kernel without it rejects even a
// request for zero bytes.
bool can_populate() {
  static const bool can = madvise(nullptr, 0, MADV_POPULATE_WRITE) == 0;
  return can;
}

}  // namespace

Result<uint64_t> sealed_size(const UniqueFd& file, int seals) {
  const int found = fcntl(file.get(), F_GET_SEALS);
  if (found < 0 || (found & seals) != seals) {
    return Status(Code::kInvalidArgument, "shm: peer's memory is not sealed");
  }
  struct statfs system {};
  struct stat info {};
  if (fstatfs(file.get(), &system) != 0 || fstat(file.get(), &info) != 0) {
    return status_from_errno(errno, "shm: fstat");
  }
  // Accepts only tmpfs. Huge pages can run out, and an access then raises SIGBUS.
  if (system.f_type != TMPFS_MAGIC || info.st_size < 0) {
    return Status(Code::kInvalidArgument, "shm: peer's memory is no memory file");
  }
  return static_cast<uint64_t>(info.st_size);
}

ConnectionMemory::ConnectionMemory(UniqueFd file, const Geometry& geometry)
    : file_(std::move(file)), geometry_(geometry) {}

ConnectionMemory::ConnectionMemory(ConnectionMemory&& other) noexcept
    : file_(std::move(other.file_)),
      geometry_(other.geometry_),
      base_(std::exchange(other.base_, nullptr)) {}

ConnectionMemory& ConnectionMemory::operator=(ConnectionMemory&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(geometry_, other.geometry_);
  std::swap(base_, other.base_);
  return *this;
}

ConnectionMemory::~ConnectionMemory() {
  if (base_ != nullptr) munmap(base_, size_bytes());
}

Status ConnectionMemory::map() {
  void* const base =
      mmap(nullptr, size_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (base == MAP_FAILED) return status_from_errno(errno, "shm: mmap");
  base_ = static_cast<std::byte*>(base);
  // A forked child must not keep the memory alive or write to it.
  if (madvise(base, size_bytes(), MADV_DONTFORK) != 0) {
    return status_from_errno(errno, "shm: madvise");
  }
  return {};
}

Status ConnectionMemory::check_support(const Geometry& geometry) {
  // No page of the file is accessed here, so its size costs nothing.
  Result<UniqueFd> file = create_memory_file("hetcomm", geometry.file_bytes());
  if (!file.ok()) return file.status().annotate("shm");
  if (fcntl(file->get(), F_ADD_SEALS, kSeals) != 0) return status_from_errno(errno, "shm: sealing");
  return {};
}

Result<ConnectionMemory> ConnectionMemory::create(const Geometry& geometry) {
  Result<UniqueFd> created = create_memory_file("hetcomm", geometry.file_bytes());
  if (!created.ok()) return created.status().annotate("shm");
  UniqueFd file = std::move(created).value();
  if (const int error = allocate(file.get(), 0, kControlBytes); error != 0) {
    return Status(Code::kOutOfMemory,
                  std::string(status_from_errno(error, "shm: no shared memory").text()));
  }
  if (fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) return status_from_errno(errno, "shm: sealing");
  ConnectionMemory memory(std::move(file), geometry);
  HETCOMM_RETURN_IF_ERROR(memory.map());
  return memory;
}

Result<ConnectionMemory> ConnectionMemory::adopt(UniqueFd file, const Geometry& geometry) {
  if (!geometry.valid())
    return Status(Code::kInvalidArgument, "shm: peer's ring sizes are invalid");
  Result<uint64_t> size = sealed_size(file, kSeals);
  if (!size.ok()) return size.status();
  if (*size != geometry.file_bytes()) {
    return Status(Code::kInvalidArgument, "shm: peer's memory has another size than announced");
  }
  ConnectionMemory memory(std::move(file), geometry);
  HETCOMM_RETURN_IF_ERROR(memory.map());
  return memory;
}

void ConnectionMemory::let_go_of_file() {
  if (can_populate()) file_.reset();
}

Code ConnectionMemory::allocate_ring(int side, uint64_t from, uint64_t to) {
  std::byte* const begin = ring(side) + from;
  const auto offset = static_cast<uint64_t>(begin - base_);
  const int error = file_.valid() ? allocate(file_.get(), offset, to - from)  //
                                  : populate(begin, to - from);
  if (error != 0) return Code::kOutOfMemory;
  if (to == geometry_.ring_bytes) file_.reset();
  return Code::kOk;
}

}  // namespace hetcomm::shm
