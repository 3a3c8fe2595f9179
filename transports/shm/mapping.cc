#include "transports/shm/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>
#include <span>
#include <utility>

#include "transports/shm/connection_memory.h"

namespace hetcomm::shm {
namespace {

bool is_answer(const Parcel& parcel) {
  return parcel.kind == ParcelKind::kHere || parcel.kind == ParcelKind::kNone;
}

}  // namespace

Result<RemoteKey> PublishedRegions::add(const Region& region) {
  if (region.file < 0) {
    return Status(Code::kUnsupported, "shm: only memory of hetcomm_memory_allocate can be mapped");
  }
  if (!region.writable || !region.readable || !region.atomic) {
    return Status(
        Code::kUnsupported,
        "shm: only memory with every access right can be mapped, as a mapping refuses none");
  }
  regions_[++last_] = Entry{region, false};
  return key_of(last_);
}

const Region* PublishedRegions::find(uint64_t id, int peer, Refusal* refusal) const {
  const auto found = regions_.find(id);
  if (found == regions_.end()) {
    *refusal = id == 0 || id > last_ ? Refusal::kUnknown : Refusal::kWithdrawn;
  } else if (!found->second.region.is_for(peer)) {
    *refusal = Refusal::kForeign;
  } else if (found->second.closed) {
    *refusal = Refusal::kWithdrawn;
  } else {
    return &found->second.region;
  }
  return nullptr;
}

void PublishedRegions::close(uint64_t id) {
  const auto found = regions_.find(id);
  if (found != regions_.end()) found->second.closed = true;
}

void PublishedRegions::erase(uint64_t id) { regions_.erase(id); }

Result<Mapping> Mapping::create(const UniqueFd& file, const Parcel& here, uint64_t length) {
  if (here.length != length || length == 0) {
    return Status(Code::kInvalidArgument, "shm: peer's region has another length than its export");
  }
  Result<uint64_t> size = sealed_size(file, F_SEAL_SHRINK);
  if (!size.ok()) return size.status();
  if (here.offset > *size || length > *size - here.offset) {
    return Status(Code::kInvalidArgument, "shm: peer's region ends past its file");
  }
  Mapping mapping;
  mapping.skip_ = here.offset % kPageBytes;
  mapping.size_ = length + mapping.skip_;
  void* const base = mmap(nullptr, mapping.size_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(),
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
  const auto bytes = std::as_bytes(std::span(&parcel, 1));
  return send_with(socket_, bytes, file);
}

Status ParcelPort::send(const Parcel& parcel, int file) {
  if (waiting_.empty()) {
    const Status sent = send_now(parcel, file);
    if (sent.code() != Code::kWouldBlock) return sent;
  }
  // The region may be withdrawn before the parcel can be sent, so its file is duplicated.
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
