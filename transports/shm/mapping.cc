#include "transports/shm/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <span>
#include <utility>

namespace hetcomm::shm {
namespace {

bool is_answer(const Parcel& parcel) {
  return parcel.kind == ParcelKind::kHere || parcel.kind == ParcelKind::kNone;
}

// The same file, for reading only.
UniqueFd reopen_for_reading(int file) {
  return UniqueFd(open(fmt::format("/proc/self/fd/{}", file).c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace

Result<RemoteKey> PublishedRegions::add(const Region& region) {
  if (region.file < 0) {
    return Status(Code::kUnsupported, "shm: not of hetcomm_memory_allocate: it has no file to map");
  }
  regions_[++last_] = Entry{region, false};
  return key_of(last_);
}

const Region* PublishedRegions::find(uint64_t id) const {
  const auto found = regions_.find(id);
  return found == regions_.end() || found->second.closed ? nullptr : &found->second.region;
}

void PublishedRegions::close(uint64_t id) {
  const auto found = regions_.find(id);
  if (found != regions_.end()) found->second.closed = true;
}

void PublishedRegions::erase(uint64_t id) { regions_.erase(id); }

Result<Mapping> Mapping::create(const UniqueFd& file, const Parcel& here) {
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(Code::kInvalidArgument, "shm: peer's region is not sealed");
  }
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return status_from_errno(errno, "shm: fstat");
  const auto size = static_cast<uint64_t>(info.st_size);
  if (here.offset > size || here.length > size - here.offset || here.length == 0) {
    return Status(Code::kInvalidArgument, "shm: peer's region ends past its file");
  }
  Mapping mapping;
  mapping.skip_ = here.offset % kPageBytes;
  mapping.size_ = here.length + mapping.skip_;
  const int protection = here.writable != 0 ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const base = mmap(nullptr, mapping.size_, protection, MAP_SHARED, file.get(),
                          static_cast<off_t>(here.offset - mapping.skip_));
  if (base == MAP_FAILED) return status_from_errno(errno, "shm: mapping the peer's region");
  mapping.base_ = static_cast<std::byte*>(base);
  if (madvise(base, mapping.size_, MADV_DONTFORK) != 0) {
    return status_from_errno(errno, "shm: madvise");
  }
  return mapping;
}

Mapping::Mapping(Mapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), size_(other.size_), skip_(other.skip_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  std::swap(skip_, other.skip_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) munmap(base_, size_);
}

Status ParcelPort::send_now(const Parcel& parcel, int file) const {
  UniqueFd readable;
  if (file >= 0 && parcel.writable == 0) {
    readable = reopen_for_reading(file);
    if (!readable.valid()) return status_from_errno(errno, "shm: no read-only view of a region");
    file = readable.get();
  }
  const auto bytes = std::as_bytes(std::span(&parcel, 1));
  return send_with(socket_, bytes, file);
}

Status ParcelPort::send(const Parcel& parcel, int file) {
  if (waiting_.empty()) {
    const Status sent = send_now(parcel, file);
    if (sent.code() != Code::kWouldBlock) return sent;
  }
  // The region may be gone before there is room: its file is kept.
  UniqueFd copy(file >= 0 ? fcntl(file, F_DUPFD_CLOEXEC, 0) : -1);
  if (file >= 0 && !copy.valid()) return status_from_errno(errno, "shm: passing a region");
  waiting_.push_back({parcel, std::move(copy)});
  if (is_answer(parcel)) ++answers_waiting_;
  return {};
}

Status ParcelPort::flush() {
  while (!waiting_.empty()) {
    const Status sent = send_now(waiting_.front().parcel, waiting_.front().file.get());
    if (sent.code() == Code::kWouldBlock) return {};
    if (!sent.ok()) return sent;
    if (is_answer(waiting_.front().parcel)) --answers_waiting_;
    waiting_.pop_front();
  }
  return {};
}

Status ParcelPort::receive(bool file_expected, Parcel* out, UniqueFd* file) {
  HETCOMM_RETURN_IF_ERROR(receive_with(socket_, sizeof(Parcel), file_expected, incoming_));
  std::memcpy(out, incoming_.bytes.data(), sizeof(*out));
  incoming_.bytes.clear();
  *file = std::move(incoming_.descriptor);
  return {};
}

}  // namespace hetcomm::shm
