#include "src/core/collectives/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include <fmt/core.h>

#include "src/base/span.h"
#include "src/system/memory_file.h"
#include "src/system/random.h"

namespace hetcomm::collectives {
namespace {

constexpr const char* kName = "hetcomm-collective";

uint64_t whole_pages(uint64_t bytes) {
  constexpr uint64_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

std::byte* map(int file, uint64_t size) {
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

}  // namespace

struct SharedArena::Header {
  uint64_t nonce[2];
  alignas(64) std::atomic<uint64_t> sleepers[kMaxRanks / 64];
};

uint64_t SharedArena::slots_at(uint32_t ranks) {
  return whole_pages(sizeof(Header) + ranks * sizeof(ReadCosts));
}

uint64_t SharedArena::long_slots_at(uint32_t ranks) {
  return whole_pages(slots_at(ranks) + uint64_t{ranks} * slots_for(ranks) * sizeof(ChunkSlot));
}

uint64_t SharedArena::size_for(uint32_t ranks) {
  return long_slots_at(ranks) + uint64_t{ranks} * kLongSlots * long_bytes_for(ranks);
}

std::atomic<uint64_t>* SharedArena::sleepers() const {
  return reinterpret_cast<Header*>(base_)->sleepers;
}

ReadCosts* SharedArena::read_costs() const {
  return reinterpret_cast<ReadCosts*>(base_ + sizeof(Header));
}

ChunkSlot* SharedArena::slots() const {
  return reinterpret_cast<ChunkSlot*>(base_ + slots_at(ranks_));
}

SharedArena::SharedArena(uint32_t ranks, UniqueFd file, std::byte* base)
    : ranks_(ranks), file_(std::move(file)), base_(base) {}

SharedArena::SharedArena(SharedArena&& other) noexcept
    : ranks_(other.ranks_),
      file_(std::move(other.file_)),
      base_(std::exchange(other.base_, nullptr)) {}

SharedArena::~SharedArena() {
  if (base_ != nullptr) munmap(base_, size_for(ranks_));
}

Result<SharedArena> SharedArena::create(uint32_t ranks, ArenaOffer* offer) {
  const uint64_t size = size_for(ranks);
  Result<UniqueFd> created = create_memory_file(kName, size);
  if (!created.ok()) return created.status();
  UniqueFd file = std::move(created).value();
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return status_from_errno(errno, kName);
  }
  HETCOMM_RETURN_IF_ERROR(fill_random(std::as_writable_bytes(std::span(offer->nonce))));
  std::byte* const base = map(file.get(), size);
  if (base == nullptr) return status_from_errno(errno, kName);
  std::memcpy(base, offer->nonce, sizeof(offer->nonce));
  offer->process = getpid();
  offer->file = file.get();
  offer->usable = 1;
  return SharedArena(ranks, std::move(file), base);
}

Result<SharedArena> SharedArena::open(uint32_t ranks, const ArenaOffer& offer) {
  const std::string path = fmt::format("/proc/{}/fd/{}", offer.process, offer.file);
  std::array<char, 64> target{};
  // In this namespace, the process id may belong to another process, so the file is checked before
  // it is opened.
  if (readlink(path.c_str(), target.data(), target.size() - 1) < 0) {
    return status_from_errno(errno, path);
  }
  if (std::strstr(target.data(), kName) == nullptr) {
    return Status(Code::kNotFound, path + " is another file");
  }
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return status_from_errno(errno, path);
  const uint64_t size = size_for(ranks);
  struct stat info {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (fstat(file.get(), &info) != 0 || static_cast<uint64_t>(info.st_size) != size || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    return Status(Code::kNotFound, path + " is another file");
  }
  std::byte* const base = map(file.get(), size);
  if (base == nullptr) return status_from_errno(errno, path);
  SharedArena arena(ranks, std::move(file), base);
  if (std::memcmp(base, offer.nonce, sizeof(offer.nonce)) != 0) {
    return Status(Code::kNotFound, path + " belongs to another team");
  }
  return arena;
}

}  // namespace hetcomm::collectives
